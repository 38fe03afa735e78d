# Decides on CUDA and says so in one line: PARAMSHARD_HAS_CUDA.
#
# The runtime is linked statically and the driver is looked up when it is needed, so the programs start on machines that
# have neither.
set(PARAMSHARD_HAS_CUDA FALSE)
set(PARAMSHARD_CUDA_MINIMUM 13.0)  # cudaMemcpyBatchAsync as it is called here

if(PARAMSHARD_CUDA STREQUAL "OFF")
  message(STATUS "paramshard: CUDA left out (PARAMSHARD_CUDA=OFF), cpu devices only")
  return()
endif()

find_package(CUDAToolkit QUIET)
if(NOT CUDAToolkit_FOUND)
  set(reason "CUDA not found")
elseif(CUDAToolkit_VERSION VERSION_LESS PARAMSHARD_CUDA_MINIMUM)
  set(reason "CUDA ${CUDAToolkit_VERSION} found, ${PARAMSHARD_CUDA_MINIMUM} or newer needed")
else()
  # Their libraries are loaded when they are needed.
  find_path(PARAMSHARD_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_path(PARAMSHARD_CUBLAS_INCLUDE_DIR cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  mark_as_advanced(PARAMSHARD_NCCL_INCLUDE_DIR PARAMSHARD_CUBLAS_INCLUDE_DIR)
  if(NOT PARAMSHARD_NCCL_INCLUDE_DIR)
    set(reason "NCCL's header nccl.h not found")
  elseif(NOT PARAMSHARD_CUBLAS_INCLUDE_DIR)
    set(reason "cuBLAS's header cublasLt.h not found")
  endif()
endif()
if(DEFINED reason)
  if(PARAMSHARD_CUDA STREQUAL "ON")
    message(FATAL_ERROR "paramshard: PARAMSHARD_CUDA=ON: ${reason}")
  endif()
  message(STATUS "paramshard: ${reason}, cpu devices only")
  return()
endif()

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90)
endif()
set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(PARAMSHARD_HAS_CUDA TRUE)
message(STATUS "paramshard: CUDA ${CUDAToolkit_VERSION} for architecture ${CMAKE_CUDA_ARCHITECTURES}")
