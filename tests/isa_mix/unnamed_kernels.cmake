# Fails if OBJECT, whose calls are in float without AttentionPrecision, contains int8 kernels: every header-only program
# would compile them, for each instruction set. Kernels of bfloat16 pairs are chosen by Execution::matmul_precision, a
# value: they must be compiled for AVX-512-BF16 and AMX alone.
cmake_minimum_required(VERSION 3.24)

execute_process(COMMAND ${NM} -C --defined-only ${OBJECT} OUTPUT_VARIABLE names COMMAND_ERROR_IS_FATAL ANY)
if(NOT names MATCHES "ExactPath")
  message(FATAL_ERROR "${OBJECT} must contain a header-only call of attention")
endif()
string(REGEX MATCHALL "[^\n]*(CodePath|CodeKernels|score_codes)[^\n]*" unnamed "${names}")
if(unnamed)
  list(JOIN unnamed "\n  " text)
  message(FATAL_ERROR "kernels that no call names are compiled:\n  ${text}")
endif()
string(REGEX MATCHALL "[^\n]*PairKernels[^\n]*" pairs "${names}")
foreach(name IN LISTS pairs)
  if(NOT name MATCHES "::(avx512bf16|amx)::")
    message(FATAL_ERROR "kernels of bfloat16 pairs are compiled for another instruction set:\n  ${name}")
  endif()
endforeach()
