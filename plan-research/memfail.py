from model import *
seen=set()
for x in A+[b for b in Bt if b.rec is not None]:
    if x.b is None or x.v is None: continue
    m,d=memory(x,x.rec,x.b,x.v,params_layer,kinds,era(x)=='unfused',fsdp(x))
    need=m*(1+FRAG)+RESERVED
    key=(x.src,x.raw['model']['id'],x.d.name,x.b,x.s,x.dp,x.prec,x.rec)
    if need>x.d.mem*1.0737:
        if x.src=='llm_foundry' and x.raw['n_gpus']>8 : continue
        k2=(x.src,x.raw['model']['id'],x.d.name,x.prec)
        if k2 in seen: continue
        seen.add(k2)
        print(x.id,x.raw['model']['id'],x.d.name,x.prec,'b%d s%d h%d dp%d tp%d cp%d %s z%s need %.1f of %.0f'%(x.b,x.s,x.h,x.dp,x.tp,x.cp,x.rec,x.zero,need/1e9,x.d.mem/1e9),{k:round(q/1e9,1) for k,q in d.items()})
