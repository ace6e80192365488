import sys; from model import *
def show(src, K=K0, n=400, rows=None):
    for x in (rows or A + Bt):
        if x.src == src:
            p = predict(x, K, True)
            dd = p[2] or {}
            print('%-22s %-7s n%5d %-10s tp%d pp%d v%s cp%d ep%d dp%d b%s m%.0f s%d h%d %s z%s %s T %.3f  %+6.1f %%  %s' % (x.id, x.d.name[:5], x.N, x.era, x.tp, x.pp, p[1][2], x.cp, x.ep, x.dp, p[1][1], x.B/x.dp/p[1][1], x.s, x.h, p[1][0], x.zero, x.prec, x.T, 100 * (p[0] / x.T - 1), ' '.join('%s %.3f' % (k, q) for k, q in dd.items() if isinstance(q, float))))
if __name__ == '__main__':
    K = json.load(open('/tmp/K.json'))
    for s in sys.argv[1:]: show(s, K)
