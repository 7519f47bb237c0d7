// Marks functions that both host and CUDA code compile.
#pragma once

#ifdef __CUDACC__
#define OPTIMUS_HOST_DEVICE __host__ __device__
#else
#define OPTIMUS_HOST_DEVICE
#endif
