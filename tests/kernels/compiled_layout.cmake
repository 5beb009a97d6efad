# A program links to attn::compiled with the library's own headers. It does not link with headers whose structs have
# their fields in another order: sizes would be equal, and results wrong without an error.
#
# Arguments: CXX, INCLUDE_DIR, LIBRARY, and WORK_DIR for output files.
cmake_minimum_required(VERSION 3.24)

file(REMOVE_RECURSE ${WORK_DIR})
file(COPY ${INCLUDE_DIR}/attn DESTINATION ${WORK_DIR}/changed)
# Initialisers by name in gemm.hpp do not name packed_b.
set(fields "  index_t b_k, b_column;\n  const T* packed_b = nullptr;\n")
file(READ ${INCLUDE_DIR}/attn/kernels/gemm/gemm_problem.hpp text)
string(FIND "${text}" "${fields}" found)
if(found EQUAL -1)
  message(FATAL_ERROR "attn/kernels/gemm/gemm_problem.hpp has no '${fields}': adapt this test")
endif()
string(REPLACE "${fields}" "  const T* packed_b = nullptr;\n  index_t b_k, b_column;\n" text "${text}")
file(WRITE ${WORK_DIR}/changed/attn/kernels/gemm/gemm_problem.hpp "${text}")
file(WRITE ${WORK_DIR}/main.cpp "#include \"attn/kernels/gemm/gemm.hpp\"
int main() {
  attn::Tensor2<float> a({3, 3}), c({3, 3});
  attn::gemm(a, a, c);
}
")

# Compiles and links with the headers in `include_dir` and further flags; sets `result` and `output`.
function(link include_dir)
  execute_process(COMMAND "${CXX}" -std=c++20 ${ARGN} -DATTN_COMPILED -I${include_dir} ${WORK_DIR}/main.cpp "${LIBRARY}"
      -o ${WORK_DIR}/main
    RESULT_VARIABLE result ERROR_VARIABLE output)
  set(result ${result} PARENT_SCOPE)
  set(output "${output}" PARENT_SCOPE)
endfunction()

link(${INCLUDE_DIR})
if(NOT result EQUAL 0)
  message(FATAL_ERROR "the library's own headers do not link:\n${output}")
endif()
link(${WORK_DIR}/changed)
if(result EQUAL 0 OR NOT output MATCHES "undefined reference to [^\n]*attn::compiled::table<attn::family::Products")
  message(FATAL_ERROR "headers with other fields must not link, because their table is missing; found: ${output}")
endif()

# A program with one pinned instruction set does not link to a library with all of them.
link(${INCLUDE_DIR} -DATTN_PIN_ISA=scalar)
if(result EQUAL 0 OR NOT output MATCHES "undefined reference to [^\n]*attn::compiled::library_[a-z0-9_]*_pin_scalar")
  message(FATAL_ERROR "another pinned set must not link, because the library's name is missing; found: ${output}")
endif()
