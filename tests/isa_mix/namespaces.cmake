# How the inline namespace depends on flags: names of plain builds are short, flags that change code or layout change
# the name, and every other feature flag of CXX is in the list of those whose instructions only intrinsics emit.
cmake_minimum_required(VERSION 3.24)

# name_of(VARIABLE FLAGS...): the namespace of a file compiled with FLAGS; empty if the compiler does not know them.
set(probe "${CMAKE_CURRENT_BINARY_DIR}/attn_namespace_probe.cpp")
file(WRITE "${probe}" "#include \"attn/core/config.hpp\"\nATTN_ABI_NAMESPACE\n")
function(name_of variable)
  execute_process(COMMAND ${CXX} -std=c++20 -O1 -Werror -E -P -I${INCLUDE_DIR} ${ARGN} ${probe}
    OUTPUT_VARIABLE text ERROR_QUIET RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    set(${variable} "" PARENT_SCOPE)
    return()
  endif()
  string(REGEX MATCH "[A-Za-z0-9_]+[ \n]*$" name "${text}")
  string(STRIP "${name}" name)
  set(${variable} "${name}" PARENT_SCOPE)
endfunction()

function(expect_name expected)
  name_of(name ${ARGN})
  if(NOT name STREQUAL expected)
    message(SEND_ERROR "'${ARGN}' gives ${name}, expected ${expected}")
  endif()
endfunction()

file(STRINGS ${INCLUDE_DIR}/attn/core/config.hpp numbers REGEX "define ATTN_VERSION_(MAJOR|MINOR|PATCH) ")
list(TRANSFORM numbers REPLACE ".* " "")
list(JOIN numbers "_" version)
set(version v${version})

# Names of plain builds: at most 20 characters.
expect_name(${version}_x86v1)
expect_name(${version}_x86v1_omp -fopenmp)
expect_name(${version}_x86v1_chk -O0)
expect_name(${version}_x86v1 -O0 -DATTN_CHECK_INDEX=0)
expect_name(${version}_x86v1_chk -DATTN_CHECK_INDEX)
expect_name(${version}_x86v1_omp_lib -fopenmp -DATTN_COMPILED)
expect_name(${version}_x86v1_kernels -DATTN_COMPILED_LIBRARY)
foreach(flags "-fopenmp" "-fopenmp;-O0" "-fopenmp;-DATTN_COMPILED" "-DATTN_COMPILED_LIBRARY")
  name_of(name ${flags})
  string(LENGTH "${name}" length)
  if(length GREATER 20)
    message(SEND_ERROR "'${flags}' gives ${name}, of ${length} characters")
  endif()
endforeach()

# A level includes its features, in whichever way it is selected.
foreach(level 2 3 4)
  expect_name(${version}_x86v${level} -march=x86-64-v${level})
endforeach()
expect_name(${version}_x86v2 -msse4.2 -mpopcnt -mcx16 -msahf)
expect_name(${version}_x86v3_pclmul -march=x86-64-v3 -mpclmul)
expect_name(${version}_debug_x86v1_assertions -D_GLIBCXX_DEBUG)
expect_name(${version}_cxx98_x86v1 -D_GLIBCXX_USE_CXX11_ABI=0)
expect_name(${version}_x86v1_pin_avx2 -DATTN_PIN_ISA=avx2)

# All of these have different names.
set(names "")
foreach(flags
    "-O2" "-fopenmp" "-DATTN_COMPILED" "-DATTN_COMPILED_LIBRARY" "-DATTN_PIN_ISA=avx2" "-DATTN_NO_MMAP"
    "-D_GLIBCXX_DEBUG" "-D_GLIBCXX_ASSERTIONS" "-D_GLIBCXX_USE_CXX11_ABI=0" "-fsanitize=address" "-fsanitize=thread"
    "-mbmi2" "-mfma" "-mavx" "-mavx2" "-mavx512f" "-march=x86-64-v2" "-march=x86-64-v3" "-march=x86-64-v4"
    "-march=core2" "-march=sandybridge" "-march=ivybridge" "-march=haswell" "-march=bdver2"
    "-march=znver1" "-march=knl" "-march=skylake-avx512" "-march=cooperlake" "-march=icelake-server"
    "-march=sapphirerapids")
  name_of(name ${flags})
  if(NOT name)
    message(STATUS "${CXX} does not know ${flags}")
  elseif(name IN_LIST names)
    message(SEND_ERROR "${flags} gives ${name}, like earlier flags")
  endif()
  list(APPEND names "${name}")
endforeach()

# Feature flags and the macros that they define. Only intrinsics emit the instructions of these:
set(by_intrinsics
  ADX AES AMX_BF16 AMX_COMPLEX AMX_FP16 AMX_INT8 AMX_TILE AMXBF16 AMXCOMPLEX AMXFP16 AMXINT8 AMXTILE AVX512VP2INTERSECT
  CLDEMOTE CLFLUSHOPT CLWB CLZERO ENQCMD FSGSBASE FXSR HLE HRESET INVPCID KL LWP MMX MOVDIR64B MOVDIRI MWAITX PCONFIG PKU
  PREFETCHI PTWRITE RDPID RDPRU RDRND RDSEED RTM SERIALIZE SGX SHA SHSTK SM3 SM4 SHA512 TSXLDTRK UINTR USERMSR VAES
  VPCLMULQDQ WAITPKG WBNOINVD WIDEKL XSAVE XSAVEC XSAVEOPT XSAVES)
function(macros_of variable)
  execute_process(COMMAND ${CXX} -dM -E -x c++ ${ARGN} /dev/null
    OUTPUT_VARIABLE text ERROR_QUIET RESULT_VARIABLE result)
  string(REGEX MATCHALL "#define __[A-Za-z0-9_]+__ 1\n" macros "${text}")
  list(TRANSFORM macros REPLACE "#define __(.*)__ 1\n" "\\1")
  set(${variable} "${macros}" PARENT_SCOPE)
endfunction()
macros_of(plain_macros)
name_of(plain)
set(checked 0)
foreach(feature
    3dnow 3dnowa abm adx aes amx-bf16 amx-complex amx-fp16 amx-int8 amx-tile apxf avx avx10.1 avx10.2 avx2 avx512bf16
    avx512bitalg avx512bw avx512cd avx512dq avx512er avx512f avx512fp16 avx512ifma avx512pf avx512vbmi avx512vbmi2 avx512vl
    avx512vnni avx512vp2intersect avx512vpopcntdq avxifma avxneconvert avxvnni avxvnniint16 avxvnniint8 bmi bmi2 cldemote
    clflushopt clwb clzero cmpccxadd crc32 cx16 enqcmd f16c fma fma4 fsgsbase gfni hle hreset invpcid kl lwp lzcnt movbe
    movdir64b movdiri movrs mwaitx pclmul pconfig pku popcnt prefetchi prefetchwt1 prfchw ptwrite raoint rdpid rdpru rdrnd
    rdseed rtm sahf serialize sgx sha sha512 shstk sm3 sm4 sse3 sse4.1 sse4.2 sse4a ssse3 tbm tsxldtrk uintr usermsr vaes
    vpclmulqdq waitpkg wbnoinvd widekl xop xsave xsavec xsaveopt xsaves)
  name_of(name -m${feature})
  if(NOT name)
    continue()  # this compiler does not know it
  endif()
  math(EXPR checked "${checked} + 1")
  macros_of(macros -m${feature})
  list(REMOVE_ITEM macros ${plain_macros} ${by_intrinsics})
  if(macros AND name STREQUAL plain)
    message(SEND_ERROR "-m${feature} defines ${macros}, but the name stays ${name}")
  endif()
endforeach()
message("${checked} features of ${CXX}; plain: ${plain}")
if(checked LESS 40)
  message(FATAL_ERROR "too few: the compiler does not run")
endif()
