"""Step-time model of published training runs: research for the constants of lockstep/plan/time/stacks.cpp. Not part of the product."""
import json, math, sys
import numpy as np
from memory import memory, layer_bytes

DATA = '../shared/data/'
RUNS = json.load(open(DATA + 'published_runs.json'))
GPUS = {g['id']: g for g in json.load(open(DATA + 'gpus.json'))['gpus']}

# ---------------------------------------------------------------- devices
class Dev: pass
def device(name):
    g = GPUS[name]; d = Dev()
    t = g['tflops_dense']
    d.name = name; d.gen = {'Volta': 'V', 'Ampere': 'A', 'Hopper': 'H'}.get(g['arch'], 'B' if 'lackwell' in g['arch'] else 'C')
    d.peak = (t['bf16'] or t['fp16']) * 1e12
    d.fp8 = (t['fp8'] or 0) * 1e12; d.fp4 = (t['fp4'] or 0) * 1e12
    d.hbm = g['mem_bw_gbps'] * 1e9; d.mem = g['mem_gb'] * 1e9
    d.sm = g['sm_or_cu'] or {'B': 148}.get(d.gen, 132)
    d.link = g['scaleup']['unidir_gbps_per_gpu'] * 1e9
    d.domain = g['scaleup']['domain_gpus']; d.gpn = g['gpus_per_node'] or 8
    d.nic = (g['nic_gbit_per_gpu'] or 400) / 8 * 1e9
    d.watts = g['power_w']
    d.link_eff = {'V': .80, 'A': .757, 'H': .824, 'B': .80}.get(d.gen, .7)
    return d
DEV = {}
def dev(name):
    if name not in DEV: DEV[name] = device(name)
    return DEV[name]

# ---------------------------------------------------------------- rows
class Row: pass
def row(r):
    m, l = r['model'], r['layout']; x = Row()
    x.id = r['id']; x.src = r['source']; x.tier = r['tier']; x.T = r['derived'].get('step_time_s'); x.raw = r
    x.d = dev(r['gpu']['name']); x.N = r['n_gpus']
    x.L, x.h, x.a, x.k, x.f, x.V, x.s = (m.get(q) for q in ('layers', 'hidden', 'heads', 'kv_heads', 'ffn', 'vocab', 'seq'))
    x.D = m.get('head_dim') or (x.h // x.a if x.h and x.a else None)
    x.g = 3 if m.get('gated_mlp') else 2
    x.moe = m.get('moe'); x.mla = m.get('mla'); x.sw = m.get('sliding_window')
    x.tp, x.pp, x.dp, x.cp, x.ep = (l.get(q) or 1 for q in ('tp', 'pp', 'dp', 'cp', 'ep'))
    x.etp = l.get('etp') or 1
    x.v = l.get('vpp'); x.b = l.get('micro_batch'); x.B = l.get('global_batch'); x.sp = l.get('sequence_parallel')
    x.rec = norm_rec(l.get('recompute')); x.zero = l.get('zero_stage'); x.sched = l.get('schedule') or '1f1b'
    p = x.praw = str(l.get('precision')); x.prec = 'fp16' if p == 'fp16' else 'nvfp4' if p == 'nvfp4' else 'bf16' if p == 'bf16' else 'mxfp8' if 'mx' in p else 'fp8'
    x.ok = bool(x.T and x.L and x.h and x.B and x.D and (x.f or x.moe))
    return x
def norm_rec(s):
    if s is None: return None
    if 'SAC' in s: return 'sac'
    if s.startswith('microbatch'): return 'mbsel'
    if 'RMSNorm' in s: return 'norms'
    return s

def era(x):
    """Kernels of a row from generation, precision, ZeRO stage, shape of the model; never from its source.
    An MLP without a gate is the mark of GPT-class models of before mid 2023; fp16 that of before 2023."""
    g = x.d.gen
    if g == 'V': return 'unfused'
    if g == 'A': return 'flash' if x.prec != 'fp16' and (fsdp(x) or x.g == 3) else 'unfused'
    if g == 'H': return 'flash' if fsdp(x) and not x.moe and x.praw in ('bf16', 'fp8') else 'current'
    return 'current'
def fsdp(x): return x.zero in (2, 3)

# ---------------------------------------------------------------- constants (start values; fit() changes those in FREE)
K0 = {
    'cap.V': .86, 'cap.A': .86, 'cap.H': .74, 'cap.B': .68, 'k0.V': 200, 'k0.A': 250, 'k0.H': 400, 'k0.B': 500,
    'fp8.H': .65, 'fp8.B': .65, 'mxfp8.B': .62, 'nvfp4.B': .52, 'fk0.H': 600, 'fk0.B': 900,
    'att.V.unfused': .40, 'att.A.unfused': .45, 'att.A.flash': .45, 'att.A.flash2': .60, 'att.H.flash2': .34, 'att.H.flash': .25, 'att.H.current': .60, 'att.B.current': .50,
    'attb.A.flash': .35, 'attb.A.flash2': .50, 'attb.H.flash2': .30, 'attb.H.flash': .22, 'attb.H.current': .50, 'attb.B.current': .45,
    's0.flash': 350, 's0.current': 500, 's0.unfused': 1, 'd64': .80, 'soft': 10,
    'pw.unfused': 1.3, 'pw.flash': 1.1, 'pw.current': 1.0, 'hbm': .80,
    'head.unfused': 28, 'head.flash': 28, 'head.current': 20,
    'launch.unfused': 6e-6, 'launch.flash': 6e-6, 'launch.current': 2e-6,
    'host.unfused': .05, 'host.flash': .05, 'host.current': .05,
    'tp.unfused': 1.0, 'tp.flash': 1.0, 'tp.current': .4,
    'cp.current': .5, 'ep.current': 1.0, 'send.unfused': 1.0, 'send.flash': 1.0, 'send.current': .3,
    'dp.unfused': 1.0, 'dp.flash': .15, 'dp.current': .15, 'straggle': .003, 'net': .90, 'fsdp.flash': .3, 'fsdp.current': .3,
    'power': .40, 'ultra': 1.15, 'moehost.grace': .0019, 'moehost.x86': .003, 'cast': 4, 'opt': 34,
}

# ---------------------------------------------------------------- operations
def gemm(x, K, m, n, k, low=False, grouped=1, quant=True):
    d = x.d
    if m * n * k == 0: return 0.
    tiles = math.ceil(m / 128) * math.ceil(n / 256) * grouped
    fill = m * n * grouped / (math.ceil(tiles / d.sm) * d.sm * 128 * 256)
    w = math.sqrt(fill)
    pw = (min(1., d.watts / 700.) ** K['power']) if d.gen == 'H' else 1.
    if d.name.startswith('GB300') and not (low and x.prec == 'nvfp4'): pw *= K['ultra']
    if low and x.prec in ('fp8', 'mxfp8', 'nvfp4'):
        peak, cap, k0, by = d.fp8, K['fp8.' + d.gen], K['fk0.' + d.gen], 1
        if d.gen == 'B' and x.prec == 'mxfp8': cap = K['mxfp8.B']
        if x.prec == 'nvfp4' and d.gen == 'B': peak, cap, by = d.fp4, K['nvfp4.B'], .5
        cast = K['cast'] * m * k * grouped / (d.hbm * K['hbm']) if quant else 0
    else:
        peak, cap, k0, by, cast = d.peak, K['cap.' + d.gen], K['k0.' + d.gen], 2, 0
    t = 2. * m * n * k * grouped / (peak * cap * pw * w * k / (k + k0))
    tb = (by * (m * k + k * n) + 2 * m * n) * grouped / (K['hbm'] * d.hbm)
    return max(t, tb) + cast + K['launch.' + x.era]

def lin(x, K, M, nin, nout, low=True, grouped=1):
    """forward, input gradient, weight gradient of one linear."""
    return np.array([gemm(x, K, M, nout, nin, low, grouped), gemm(x, K, M, nin, nout, low, grouped), gemm(x, K, nout, nin, M, low, grouped, False)])

# ---------------------------------------------------------------- collectives: NCCL's choice over protocols of a ring (and tree, NVLS)
BASE = {'ll': 6.6e-6, 'll128': 14e-6, 'simple': 8.4e-6}
HW_NV = {'ll': .6e-6, 'll128': 1.9e-6, 'simple': 3.4e-6}
HW_NET = {'ll': 2.7e-6, 'll128': 4.0e-6, 'simple': 14e-6}
SHARE = {'ll': .25, 'll128': .92, 'simple': 1.0}
def group(x, n, stride):
    """ranks a node holds of a group of n at this stride, and nodes (domains of links)."""
    r = max(1, min(n, x.d.domain // max(1, min(stride, x.d.domain)))); return r, math.ceil(n / r)
def bandwidth(x, K, n, stride):
    r, nodes = group(x, n, stride)
    link = x.d.link * x.d.link_eff
    if x.d.gen == 'A' and nodes == 1: link *= {2: .85, 4: .96}.get(n, 1)
    if nodes == 1: return link, r, nodes
    return min(link, r * x.d.nic * .94), r, nodes
def coll(x, K, kind, S, n, stride):
    if n <= 1 or S <= 0: return 0.
    B, r, nodes = bandwidth(x, K, n, stride); best = 1e9
    steps, inter = (2 * (n - 1), 2 * (nodes - 1)) if kind == 'ar' else (n - 1, nodes - 1)
    vol = S * steps / n
    if kind == 'a2a':
        # S = copies of tokens for all experts; over NICs a token goes once to a node (K copies -> expected distinct nodes)
        top = x.moe['topk'] if x.moe else 1
        far = (S / top) * (nodes - 1) * (1 - (1 - 1. / nodes) ** top) if nodes > 1 else 0
        return 12e-6 + nodes * 3e-6 + max(far / (x.d.nic * .94), S * (n - 1) / n / (x.d.link * x.d.link_eff) if nodes == 1 else S * (r - 1) / r / (x.d.link * x.d.link_eff))
    for p in BASE:
        lat = BASE[p] + (steps - inter) * HW_NV[p] + inter * HW_NET[p]
        best = min(best, lat + vol / (B * SHARE[p]))
    if kind == 'ar':
        if nodes > 1:
            lat = 14e-6 + 2 * ((r - 1) * 1.25e-6 + math.log2(nodes) * 8.5e-6)
            best = min(best, lat + 2 * S / (.92 * B))
        if x.d.gen in 'HB' and n >= 4 and nodes == 1:
            best = min(best, 25e-6 + vol / (x.d.link * 1.055))
    return best / K['net']

# ---------------------------------------------------------------- one layer
def attention(x, K, T, s, a, D, Dv=None, frac=.5, fused=True):
    """forward and backward seconds of the core; T tokens (queries) on this rank, `a` heads of it, `s` keys."""
    Dv = Dv or D
    if x.era == 'unfused' or not fused:
        e = K.get('att.%s.unfused' % x.d.gen, .45)
        t = 2. * T * s * a * (D + Dv) / (x.d.peak * e) + K['soft'] * a * T * s / (x.d.hbm * K['hbm']) + 4 * K['launch.unfused']
        return t, 2 * t
    fl = 2. * T * s * a * (D + Dv) * frac
    g = x.d.gen + '.' + ('flash2' if x.era == 'flash' and x.g == 3 else x.era)     # flash2: FlashAttention 2; flash: first flash kernels (Triton)
    sk = s / (s + K['s0.' + x.era]) * (K['d64'] if D <= 64 else 1)
    pw = (min(1., x.d.watts / 700.) ** K['power']) if x.d.gen == 'H' else 1.
    if x.d.name.startswith('GB300'): pw *= K['ultra']
    return fl / (x.d.peak * K['att.' + g] * sk * pw), 2.5 * fl / (x.d.peak * K['attb.' + g] * sk * pw)

def layer(x, K, M, b, kind='dense', window=None):
    """Parts of one layer for one microbatch: dict of arrays [forward, backward]."""
    t = x.tp; h = x.h; D = x.D; low = x.prec in ('fp8', 'mxfp8', 'nvfp4')
    prod = np.zeros(3); r = {}
    if x.mla:
        q, kv, n, ro, dv = (x.mla[z] for z in ('q_lora_rank', 'kv_lora_rank', 'qk_head_dim', 'qk_rope_dim', 'v_head_dim')); a = x.a
        prod += lin(x, K, M, h, q + kv + ro, low) + lin(x, K, M, q, a * (n + ro) // t, low) + lin(x, K, M, kv, a * (n + dv) // t, low) + lin(x, K, M, a * dv // t, h, low)
        af, ab = attention(x, K, M, x.s, a / t, n + ro, dv); qd = a * (n + ro); kvd = a * (n + ro + dv)
    else:
        prod += lin(x, K, M, h, (x.a + 2 * x.k) * D // t, low) + lin(x, K, M, x.a * D // t, h, low)
        s, frac = x.s, .5
        if window and window < s: frac = window / s
        af, ab = attention(x, K, M, s, x.a / t, D, frac=frac, fused=not (x.sw and not window and x.prec == 'bf16')); qd = x.a * D; kvd = 2 * x.k * D
    spd = t if x.sp else 1
    gp = 2 if x.g == 3 else 1
    pw = K['pw.' + x.era] / (x.d.hbm * K['hbm'])
    by = 22. * h / spd
    ept = 0.
    if kind == 'dense':
        prod += lin(x, K, M, h, gp * x.f // t, low) + lin(x, K, M, x.f // t, h, low)
        by += (8 * gp + 8) * x.f / t
        pwf = by * M * pw
    else:
        mo = x.moe; E, top, fe, fs = mo['experts'], mo['topk'], mo['expert_ffn'], mo.get('shared_expert_ffn') or 0
        Mr = M / t if x.sp else M
        per = E // x.ep; rows = x.ep * x.etp * Mr * top / E
        prod += lin(x, K, rows, h, gp * fe // x.etp, low, per) + lin(x, K, rows, fe // x.etp, h, low, per)
        if fs: prod += lin(x, K, M, h, gp * fs // t, low) + lin(x, K, M, fs // t, h, low)
        prod += lin(x, K, Mr, h, E, False)
        R = Mr * top
        pwf = (by * M + R * x.etp * (8 * gp + 8) * fe / x.etp + 6 * 2 * R * h + 2. * 8 * Mr * E) * pw
        ept = K['ep.' + 'current'] * 2 * coll(x, K, 'a2a', Mr * top * h * 2., x.ep, t * x.cp)
    r['gemm'] = np.array([prod[0], prod[1] + prod[2]]); r['attn'] = np.array([af, ab]); r['pw'] = np.array([pwf, 2 * pwf])
    S = 2. * M * h
    if t > 1:
        if x.sp: f = 2 * coll(x, K, 'ag', S, t, 1) + 2 * coll(x, K, 'rs', S, t, 1)
        else: f = 2 * coll(x, K, 'ar', S, t, 1)
        r['tp'] = K['tp.' + x.era] * np.array([f, f])
    else: r['tp'] = np.zeros(2)
    r['cp'] = np.zeros(2)
    if x.cp > 1:
        c = x.cp; B, rr, nodes = bandwidth(x, K, c, t)
        by = 2. * M * kvd / t * (c - 1)
        tt = by / (min(B, x.d.nic * .94) if nodes > 1 else x.d.link * x.d.link_eff) / K['net']
        r['cp'] = K['cp.current'] * np.array([tt, 2 * tt]) + 2e-5 * (c - 1) * np.array([1, 2])
    r['ep'] = np.array([ept, ept])
    mh = K['moehost.' + ('grace' if x.d.name.startswith('G') else 'x86')]; r['floor'] = np.array([mh, 2 * mh]) if kind == 'moe' else np.zeros(2)
    return r

def params_layer(x, kind):
    D = x.D
    if x.mla:
        q, kv, n, ro, dv = (x.mla[z] for z in ('q_lora_rank', 'kv_lora_rank', 'qk_head_dim', 'qk_rope_dim', 'v_head_dim'))
        p = x.h * (q + kv + ro) + q * x.a * (n + ro) + kv * x.a * (n + dv) + x.a * dv * x.h
    else: p = x.h * (x.a + 2 * x.k) * D + x.a * D * x.h
    if kind == 'dense': return p + x.g * x.h * x.f + 2 * x.h, 0
    mo = x.moe
    return p + x.g * x.h * (mo.get('shared_expert_ffn') or 0) + x.h * mo['experts'] + 2 * x.h, mo['experts'] * x.g * x.h * mo['expert_ffn']

# ---------------------------------------------------------------- a step
def kinds(x):
    if not x.moe: return ['dense'] * x.L
    d = x.moe.get('dense_layers') or 0
    return ['dense'] * d + ['moe'] * (x.L - d)

def step(x, K, parts=False):
    x.era = era(x)
    t, p, c = x.tp, x.pp, x.cp; v = x.v or 1
    M = x.b * x.s // c; m = x.B / (x.dp * x.b)
    mm = max(1, math.ceil(m)) if not fsdp(x) else m
    ks = kinds(x)
    lay = {}
    for kd in set(ks): lay[kd] = layer(x, K, M, x.b, kd)
    win = None
    if x.sw: win = layer(x, K, M, x.b, ks[0], x.sw['window'])
    def total(L_):
        k = L_['gemm'] + L_['attn'] + L_['pw']
        rec = 0.
        if x.rec == 'full': rec = k[0] + L_['tp'][0] + L_['cp'][0] + L_['ep'][0]
        elif x.rec in ('selective', 'mbsel') and x.era == 'unfused': rec = L_['attn'][0] * (1 if x.rec == 'selective' else .8)
        elif x.rec == 'norms': rec = .4 * L_['pw'][0] + (.25 * L_['gemm'][0] if x.mla else 0)
        elif x.rec == 'sac': rec = .5 * L_['gemm'][0] + L_['pw'][0]
        comm = L_['tp'] + L_['cp'] + L_['ep']
        h = 1 + K['host.' + x.era]
        q = np.maximum(np.array([k[0] * h + comm[0], k[1] * h + comm[1]]), L_['floor'])
        return q + np.array([0, rec * h if x.rec != 'full' else q[0]])
    tk = {q: total(z) for q, z in lay.items()}
    h1 = 1 + K['host.' + x.era]
    hd = lin(x, K, M, x.h, x.V // t, False); ce = K['head.' + x.era] * M * x.V / t / (x.d.hbm * K['hbm'])
    head = np.array([hd[0] + ce * .4, hd[1] + hd[2] + ce * .6]) * h1
    emb = np.array([4. * M * x.h, 12. * M * x.h]) / (x.d.hbm * K['hbm'])
    P = [params_layer(x, k) for k in ks]
    if fsdp(x) and x.era == 'unfused': 
        t3 = zero3_2021(x, K, tk, head, emb, m, P); return (t3, {}) if parts else t3
    if fsdp(x) and p == 1: return fsdp_step(x, K, tk, ks, head, emb, m, P, parts)
    # pipeline: layers in equal runs (the remainder on the first stages), head on the last stage
    times = [tk[k] for k in ks]
    if win is not None:
        ww = total(win); times = [(ww if i % 2 == 0 and i < 2 * x.sw['layers'] else z) for i, z in enumerate(times)]
    st = np.zeros((p, 2)); pars = np.zeros((p, 2)); chunks = p * v
    per = [x.L // chunks + (1 if i < x.L % chunks else 0) for i in range(chunks)]
    if x.L % chunks and chunks > 1:       # spread what is missing to both ends: first and last lose a layer first
        lo = x.L // chunks; per = [lo + 1] * chunks; miss = (lo + 1) * chunks - x.L
        order = [chunks - 1, 0] + list(range(chunks - 2, 0, -1))
        for i in range(miss): per[order[i % chunks]] -= 1
    i = 0
    for q in range(chunks):
        for _ in range(per[q]):
            st[q % p] += times[i]; pars[q % p] += P[i]; i += 1
    st[p - 1] += head; st[0] += emb
    mx = st.sum(1).max()
    # sends at the boundaries of stages
    S = 2. * M * x.h / (t if (x.sp or v > 1) else 1)
    send = 0.
    if p > 1:
        far = t * c * x.dp >= x.d.domain
        send = S / (x.d.nic * .94 if far else x.d.link * x.d.link_eff) / K['net'] + 15e-6
        if not x.sp and v > 1: send += coll(x, K, 'ag', 2. * M * x.h, t, 1)
    bubble = (st.sum() - mx) / v + 2 * (p - 1) * send
    steady = m * mx + K['send.' + x.era] * 2 * m * v * send
    # gradients, parameters
    z = x.zero if x.zero is not None else 0
    dpn = x.dp * c
    pd = pars.copy(); pd[0, 0] += x.V * x.h; pd[p - 1, 0] += x.V * x.h if p > 1 else 0
    Pd = pd[:, 0].max() / t; Pe = pd[:, 1].max() / (x.ep * x.etp)
    G = 4 if (x.era == 'unfused' and p > 1) else 2
    def reduction(P_, n, stride):
        if z >= 1: return coll(x, K, 'rs', G * P_, n, stride), coll(x, K, 'ag', 2. * P_, n, stride)
        return coll(x, K, 'ar', G * P_, n, stride), 0.
    g1, a1 = reduction(Pd, dpn, t); g2, a2 = reduction(Pe, max(1, dpn * t // (x.ep * x.etp)), x.ep * x.etp) if Pe else (0, 0)
    gr, ag = g1 + g2, a1 + a2
    if x.era == 'unfused' and p > 1: dpx = gr + ag
    else:
        wide = 1.
        e = K['dp.' + x.era] if x.era != 'unfused' else .3
        dpx = e * (gr + ag) + max(0, (1 - e) * gr - wide * st[0, 1]) + max(0, (1 - e) * ag - wide * st[0, 0])
    opt = K['opt'] * (Pd / (dpn if z >= 1 else 1) + Pe / (max(1, dpn * t // (x.ep * x.etp)) if z >= 1 else 1)) / (x.d.hbm * K['hbm'])
    nodes = max(1, x.N / x.d.gpn)
    T = (steady + bubble + dpx + opt) * (1 + K['straggle'] * math.log2(nodes))
    if parts:
        return T, dict(steady=steady, bubble=bubble, dp=dpx, opt=opt, gr=gr, ag=ag, send=2 * m * v * send, head=m * head.sum(), layer={q: {a: z.round(6).tolist() for a, z in w.items()} for q, w in lay.items()}, mx=mx)
    return T

def fsdp_step(x, K, tk, ks, head, emb, m, P, parts):
    n = x.dp * x.cp; t = x.tp; T = 0.; G = 2
    f_t = b_t = 0.
    for k in set(ks):
        cnt = ks.count(k); pd, pe = [q for q, kk in zip(P, ks) if kk == k][0]
        ga = coll(x, K, 'ag', 2. * pd / t, n, t); rs = coll(x, K, 'rs', G * pd / t, n, t)
        if pe:
            ne = max(1, n * t // x.ep); ga += coll(x, K, 'ag', 2. * pe / x.ep, ne, x.ep); rs += coll(x, K, 'rs', G * pe / x.ep, ne, x.ep)
        cf, cb = tk[k]
        sl = K['fsdp.' + x.era]
        gb = ga if x.zero == 3 else 0
        f_t += cnt * max(cf + sl * min(cf, ga), ga); b_t += cnt * max(cb + sl * min(cb, gb + rs), gb + rs)
    pv = x.V * x.h / t
    gh = coll(x, K, 'ag', 2. * pv, n, t); rh = coll(x, K, 'rs', G * pv, n, t)
    f_t += max(head[0], gh) + emb[0] + 2 * coll(x, K, 'ag', 2. * P[0][0] / t, n, t); b_t += max(head[1], rh) + emb[1]
    tail = rh
    Pt = (sum(q[0] for q in P) / t + 2 * pv) / n + sum(q[1] for q in P) / (x.N / 1.)
    opt = K['opt'] * Pt / (x.d.hbm * K['hbm'])
    T = (m * (f_t + b_t) + tail + opt) * (1 + K['straggle'] * math.log2(max(1, x.N / x.d.gpn)))
    if parts: return T, dict(f=m * f_t, b=m * b_t, opt=opt, tail=tail, comp=[(k, v.tolist()) for k, v in tk.items()], ga=ga, rs=rs, head=head.tolist())
    return T

def zero3_2021(x, K, tk, head, emb, m, P):
    """Parameters gathered tensor by tensor over all ranks: one NIC's rate, a ring's latency for each of 12 tensors of a layer, in forward, recompute and backward; gradients reduced."""
    n = x.dp * x.cp; tens = 8; B = x.d.nic * .94 if n > x.d.domain else x.d.link * x.d.link_eff
    lat = (n - 1) * 1.9e-6 + 14e-6
    f_t = b_t = 0.
    for i in range(x.L):
        g = 2. * P[i][0] * (n - 1) / n / B + tens * lat
        c = tk['dense']; fwd = c[0]
        e = K['fsdp.flash']
        over = lambda a, b: max(a, b) + e * min(a, b)
        f_t += over(fwd, g)
        if x.rec == 'full': b_t += over(c[0], g) + over(c[1] - c[0], 2 * g)
        else: b_t += over(c[1], 2 * g)
    opt = K['opt'] * sum(q[0] for q in P) / n / (x.d.hbm * K['hbm'])
    return (m * (f_t + b_t + head.sum() + emb.sum()) + opt) * (1 + K['straggle'] * math.log2(max(1, x.N / x.d.gpn)))

# ---------------------------------------------------------------- rows with open fields: fastest legal value
RESERVED, FRAG = 2.2e9, .02
def fits(x, rec, b, v):
    if x.d.name.startswith('GB') and fsdp(x): return True   # activations go to the host over NVLink-C2C
    return memory(x, rec, b, v, params_layer, kinds, era(x) == 'unfused', fsdp(x))[0] * (1 + FRAG) + RESERVED <= x.d.mem * 1.0737
def options(x):
    """Legal values of what a row leaves open."""
    recs = [x.rec] if x.rec is not None else ['none', 'selective', 'full'] if era(x) == 'unfused' else ['none', 'norms', 'full']
    bs = [x.b] if x.b else [b for b in (1, 2, 4, 8, 16, 32) if x.B % (x.dp * b) == 0] or [1]
    vs = [x.v] if x.v else [v for v in range(1, 13) if v == 1 or (x.pp > 1 and x.L % (x.pp * v) == 0)]
    o = [(r, b, v) for r in recs for b in bs for v in vs]
    if len(o) == 1: return o
    ok = [q for q in o if fits(x, *q)]
    return ok or [(recs[-1], bs[0], v) for v in vs]
def predict(x, K, parts=False):
    best = None; o = (x.rec, x.b, x.v, x.zero)
    if x.zero is None: x.zero = 0 if x.prec == 'fp16' or x.rec == 'full' else 1
    if not hasattr(x, 'opts'): x.opts = options(x)
    for q in x.opts:
        x.rec, x.b, x.v = q
        y = step(x, K, parts); t = y[0] if parts else y
        if best is None or t < best[0]: best = (t, q, y[1] if parts else None)
    x.rec, x.b, x.v, x.zero = o
    return best if parts else best[0]

# ---------------------------------------------------------------- evaluation
def tau(p, t):
    n = c = 0
    for i in range(len(p)):
        for j in range(i):
            if abs(t[i] / t[j] - 1) <= .05: continue
            n += 1; c += 1 if (p[i] - p[j]) * (t[i] - t[j]) > 0 else -1
    return (c / n if n else float('nan')), n
def table(rows, K, keys=None, key=lambda x: x.src, show=True):
    by = {}
    for x in rows: by.setdefault(key(x), []).append((x, predict(x, K)))
    out = {}
    for s, q in by.items():
        e = np.array([p / x.T - 1 for x, p in q])
        # order by time per token and device: runs of different batch compare so
        tu, n = tau([p * x.N / (x.B * x.s) for x, p in q], [x.T * x.N / (x.B * x.s) for x, p in q]) if len(q) < 260 else (0, 0)
        out[s] = (len(q), np.median(abs(e)), np.percentile(abs(e), 90), np.median(e), tu, n)
        if show: print('%-28s n %3d  median %5.1f %%  P90 %5.1f %%  bias %+5.1f %%  tau %5.2f of %d' % (s, len(q), 100 * out[s][1], 100 * out[s][2], 100 * out[s][3], tu, n))
    return out

ALL = [row(r) for r in RUNS['runs']]
A = [x for x in ALL if x.ok and x.tier == 'A']
Bt = [x for x in ALL if x.ok and x.tier == 'B']

if __name__ == '__main__':
    import time; t0 = time.time()
    table(A, K0); print('tier B'); table(Bt, K0); print(time.time() - t0)
