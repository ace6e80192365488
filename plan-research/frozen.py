"""Errors with the rounded constants of FITTED.md, section 2."""
from model import *
F = json.load(open('plan-research/research/fitted.json')); F.update({'cap.V': .90})
F = {k: float('%.3g' % z) for k, z in F.items()}
F['tp.unfused'] = 1.1; F['cap.H'] = .725; F['cap.A'] = .873
if __name__ == '__main__':
    if 'tp1' in sys.argv: F['tp.unfused'] = 1.0
    table(A, F); print('tier B'); table(Bt, F)
    e = lambda r: np.array([abs(predict(x, F) / x.T - 1) * 100 for x in r])
    for n, r in (('A', A), ('B', Bt), ('all dense', [x for x in A + Bt if not x.moe]), ('all experts', [x for x in A + Bt if x.moe]), ('bridge dense', [x for x in Bt if x.src == 'megatron_bridge' and not x.moe]), ('bridge experts', [x for x in Bt if x.src == 'megatron_bridge' and x.moe])):
        q = e(r); print(n, len(q), 'median %.1f P90 %.1f' % (np.median(q), np.percentile(q, 90)))
    for g in sorted(set((x.d.gen, x.era) for x in A + Bt)):
        for mo in (False, True):
            r = [x for x in A + Bt if (x.d.gen, x.era) == g and bool(x.moe) == mo]
            if r: q = e(r); print(g, 'experts' if mo else 'dense', len(q), 'median %.1f P90 %.1f' % (np.median(q), np.percentile(q, 90)))
