from model import *
for x in ALL:
    mm = {k: v for k, v in x.raw['measured'].items() if k.startswith('memory')}
    if not mm or not x.ok: continue
    for (r, b, v) in options(x)[:4]:
        m, d = memory(x, r, b, v, params_layer, kinds, False, fsdp(x))
        print(x.id, mm, r, b, v, 'reserved (+2 %%) %.1f GiB %+.1f %%' % (m*1.02 / 2**30, 100 * (m*1.02 / 2**30 / mm.get('memory_gib', 1e9) - 1)), {k: round(q / 2**30, 1) for k, q in d.items()})
from collections import Counter
print(Counter((x.src, predict(x, K0, True)[1][0], fits(x, *predict(x, K0, True)[1])) for x in A + Bt))
for x in Bt:
    p = predict(x, K0, True)[1]
    if p[0] != 'none' and x.rec is None: print(x.id, x.raw['model']['id'], x.d.name, p)
