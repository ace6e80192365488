// LOCKSTEP_BOTH: an inline function that nvcc compiles for the GPU too.
#pragma once

#if defined(__CUDACC__)
#define LOCKSTEP_BOTH __host__ __device__ inline
#else
#define LOCKSTEP_BOTH inline
#endif
