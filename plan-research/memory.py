"""Memory of a rank: states, activations in flight, head, runtime. Megatron-class and FSDP-class stacks."""
import math
def layer_bytes(x, kind, rec, unfused):
    """Bytes a token and layer keep from forward to backward on a (t) rank."""
    t, h, D = x.tp, x.h, x.D; sp = t if x.sp else 1
    if unfused:
        core = 5. * x.a * x.s / t
        if rec == 'full': return 2. * h / sp
        b = 34. * h / t if x.sp else 10. * h + 24. * h / t
        return b + (0 if rec in ('selective', 'mbsel') else core)
    if rec == 'full': return 2. * h / sp
    if x.mla:
        q, kv, n, ro, dv = (x.mla[z] for z in ('q_lora_rank', 'kv_lora_rank', 'qk_head_dim', 'qk_rope_dim', 'v_head_dim')); a = x.a
        up = 2. * a * ((n + ro) * 2 + dv)
        att = (2. * h / sp + 2 * (q + kv + ro) + (0 if rec == 'norms' else up / t) + 2. * a * dv / t + 4. * a / t)
    else: att = 2. * h / sp + (4. * x.a * D + 4. * x.k * D + 4. * x.a) / t
    b = (0 if rec == 'norms' else 4. * h / sp) + att
    gp = 2 if x.g == 3 else 1
    pr = 0 if rec == 'norms' else 2
    if kind == 'dense': return b + 2. * h / sp + (2 * gp + pr) * x.f / t
    mo = x.moe; R = mo['topk'] / (t if x.sp else 1)
    fs = mo.get('shared_expert_ffn') or 0
    return b + 2. * h / sp + (2 * gp + pr) * fs / t + R * (4. * h + (2 * gp + pr) * mo['expert_ffn']) + 4. * mo['experts'] / sp
def memory(x, rec, b, v, params_layer, kinds, unfused, fsdp):
    t, p, c = x.tp, x.pp, x.cp; n = x.dp * c; M = b * x.s / c
    ks = kinds(x); P = [params_layer(x, k) for k in ks]; per = math.ceil(x.L / p)
    dense = sum(q[0] for q in P[:per]) / t; exp = sum(q[1] for q in P[:per]) / (x.ep * x.etp)
    emb = x.V * x.h / t * (2 if p == 1 else 1); en = max(1, n * t // (x.ep * x.etp))
    fp8 = x.prec not in ('bf16', 'fp16')
    z = x.zero or 0
    lay = [layer_bytes(x, k, rec, unfused) for k in ks[:per]]
    m = x.B / (x.dp * b)
    fl = 1 if p == 1 else min(m, p) if v == 1 else (2 * (p - 1) + (v - 1) * p + 1) / v
    if fsdp:
        state = 16. * (dense + emb) / n + 16. * exp / en
        whole = (dense + emb + exp) * 2. * 2 if p > 1 else 0       # with a pipeline: parameters and gradients stay whole between microbatches
        live = 2. * 3 * max(q[0] / t + q[1] / x.ep for q in P) + 2. * emb if p == 1 else 0
        if rec == 'sac': a = M * per * fl * (2. * x.h + 2 * x.a * x.D * 2 + 2. * x.k * x.D + 2 * x.f + 2 * x.h + 4 * x.a) / t
        else: a = M * sum(lay) * fl
        work = 2 * M * layer_bytes(x, ks[-1], 'none', False) + (4 * 2. * M * x.h if t > 1 else 0)
        head = M * x.V / t * (8. if x.g == 2 else 14. if t == 1 else 18.) + (4. * M * x.h if t > 1 else 0)
        if p > 1: head = 0; 
        return state + live + whole + a + max(work, head), dict(state=state, live=live + whole, act=a, work=work, head=head)
    w = 2. if not fp8 else 2.5
    def st(q, k):
        if z == 0: return q * 18.
        if z == 1: return q * (w + 4 + 12. / k) if unfused else q * (4 + 10. / k)
        if z == 2: return q * (w + 16. / k)
        return q * 18. / k
    state = st(dense + emb, n) + st(exp, en)
    a = M * sum(lay) * fl + (M * 2. * x.h / (t if x.sp else 1) * fl if p > 1 else 0)
    head = M * x.V / t * (6 + (4 if p == 1 else 0)) if p == 1 else 0
    work = M * layer_bytes(x, ks[-1], 'none', unfused) if rec == 'full' else 0
    return state + a + head + work, dict(state=state, act=a, head=head, work=work)
