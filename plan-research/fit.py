"""Least squares of log errors around start values (priors), leave one source out."""
import sys, time, json; from model import *
SIG = {}  # prior sigma of log
for k in K0: SIG[k] = .15
for k in K0:
    if k.startswith(('tp.', 'dp.', 'cp.', 'send.', 'fsdp.', 'host', 'straggle', 's0')): SIG[k] = .5
    if k.startswith(('head', 'soft', 'pw', 'ep')): SIG[k] = .25
    if k.startswith(('cap.', 'fp8', 'mxfp8')): SIG[k] = .12
    if k.startswith('att'): SIG[k] = .25
for k in K0:
    if k.startswith(('k0', 'fk0')): SIG[k] = .5
FIX = ('s0.unfused', 'opt', 'net', 'launch', 'hbm')
FREE = [k for k in K0 if not k.startswith(FIX)]
def sample(rows, cap=28):
    by = {}
    for x in rows: by.setdefault(x.src, []).append(x)
    out = []
    for s, q in by.items():
        n = len(q); st = max(1, -(-n // cap)); q = q[::st]
        out += [(x, min(1., math.sqrt(10. / len(q))) ) for x in q]
    return out
def fit(rows, K=None, free=None, it=4, cap=28, noise=.05, verbose=False):
    K = dict(K or K0); P = sample(rows, cap)
    used = free or FREE
    def choose(K):
        for x, w in P: x.pick = predict(x, K, True)[1]
    def resid(K):
        o = []
        for x, w in P:
            keep = (x.rec, x.b, x.v, x.zero); x.rec, x.b, x.v = x.pick
            if x.zero is None: x.zero = 0 if x.prec == 'fp16' or x.rec == 'full' else 1
            o.append(math.log(step(x, K) / x.T)); x.rec, x.b, x.v, x.zero = keep
        return np.array(o)
    choose(K)
    r = resid(K); w0 = np.array([w for x, w in P])
    # keep only constants that matter for these rows
    J = {}
    lam = 1.
    for _ in range(it):
        if _: choose(K); r = resid(K)
        cols = []
        for k in used:
            K2 = dict(K); K2[k] *= 1.02; cols.append((resid(K2) - r) / math.log(1.02))
        J = np.array(cols).T
        hub = np.minimum(1., .08 / np.maximum(1e-9, abs(r)))      # Huber
        W = (w0 / noise) * np.sqrt(hub)
        Aw = J * W[:, None]
        pri = np.array([math.log(K[k] / K0[k]) for k in used]); si = np.array([SIG[k] for k in used])
        H = Aw.T @ Aw + np.diag(1 / si ** 2); g = Aw.T @ (r * W) + pri / si ** 2
        d = -np.linalg.solve(H, g); d = np.clip(d, -.5, .5)
        for k, z in zip(used, d): K[k] *= math.exp(z)
        for k in K:
            if k.startswith(('cp.', 'fsdp.', 'send.', 'tp.', 'dp.')): K[k] = min(K[k], 1.2)
        r = resid(K)
        if verbose: print('obj', float(np.mean(abs(r))))
    return K
CLEAN = ('megatron_bridge', 'nemo2407', 'megatron_llama_fp8', 'dgxc_examples', 'dgxc_2412', 'torchtitan_h100', 'nemo_automodel')
POOL = A + [x for x in Bt if x.src in CLEAN and not (x.src == 'torchtitan_h100')]
def report(out, name):
    n = [o for o in out]
    print(name, 'rows', len(n), 'median %.1f %%  P90 %.1f %%  bias %+.1f %%' % (100 * np.median(abs(np.array(n))), 100 * np.percentile(abs(np.array(n)), 90), 100 * np.median(n)))
def loso(it=3, cap=16, srcs=None):
    res = {}; Ks = {}
    for s in srcs or sorted(set(x.src for x in A + Bt)):
        K = fit([x for x in POOL if x.src != s], it=it, cap=cap) if any(x.src == s for x in POOL) else KALL
        rows = [x for x in A + Bt if x.src == s]
        for tier in 'AB':
            q = [x for x in rows if x.tier == tier]
            if q: res[s, tier] = table(q, K, key=lambda x: x.src + ' ' + x.tier); 
        for x in rows: Ks[x.id] = predict(x, K) / x.T - 1
        sys.stdout.flush()
    return Ks
if __name__ == '__main__':
    t0 = time.time()
    K = KALL = fit(POOL, it=5, cap=24)
    table(A, K); print(); table(Bt, K)
    print({k: float('%.3g' % z) for k, z in K.items()}, time.time() - t0)
    json.dump(K, open('/tmp/K.json', 'w'))
    if 'loso' in sys.argv:
        print('--- leave one source out'); e = loso()
        tier = {x.id: x.tier for x in ALL}
        report([v for k, v in e.items() if tier[k] == 'A'], 'tier A'); report([v for k, v in e.items() if tier[k] == 'B'], 'tier B')
        json.dump(e, open('/tmp/loso.json', 'w')); print(time.time() - t0)
