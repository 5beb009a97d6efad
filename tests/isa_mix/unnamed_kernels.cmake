# Fails if OBJECT, whose calls are in float and name neither AttentionPrecision nor MatmulPrecision, contains kernels of
# int8 or of bfloat16 pairs: every header-only program would compile them, for each instruction set.
cmake_minimum_required(VERSION 3.24)

execute_process(COMMAND ${NM} -C --defined-only ${OBJECT} OUTPUT_VARIABLE names COMMAND_ERROR_IS_FATAL ANY)
if(NOT names MATCHES "ExactPath")
  message(FATAL_ERROR "${OBJECT} must contain a header-only call of attention")
endif()
string(REGEX MATCHALL "[^\n]*(CodePath|CodeKernels|score_codes|PairPath|PairKernels|pair_panels)[^\n]*" unnamed "${names}")
if(unnamed)
  list(JOIN unnamed "\n  " text)
  message(FATAL_ERROR "kernels that no call names are compiled:\n  ${text}")
endif()
