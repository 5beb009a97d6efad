# The installed package: headers, CMake package `attn` with the components `io`, `text` and `mpi`, pkg-config files and,
# with ATTN_INSTALL_COMPILED, the compiled kernels.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(attn_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attn)
set(attn_pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(TARGETS attn EXPORT attnTargets INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT attnTargets NAMESPACE attn:: DESTINATION ${attn_package_dir})

# Separate export sets: a user of attn::attn needs no JSON parser, and installing it needs no compiler.
if(ATTN_IO)
  install(TARGETS attn_io EXPORT attnIoTargets)
  install(EXPORT attnIoTargets NAMESPACE attn:: DESTINATION ${attn_package_dir})
  set(attn_left_out "")
else()
  set(attn_left_out REGEX "/attn/io(\\.hpp)?$" EXCLUDE)
endif()
if(ATTN_TEXT)
  install(TARGETS attn_text EXPORT attnTextTargets)
  install(EXPORT attnTextTargets NAMESPACE attn:: DESTINATION ${attn_package_dir})
else()
  list(APPEND attn_left_out REGEX "/attn/(text(\\.hpp)?|models/((gguf|pretrained|sentence)/tokenizer|sentence_encoder|language_model)\\.hpp|generation/generate_texts?\\.hpp)$" EXCLUDE)
endif()
if(ATTN_MPI)
  install(TARGETS attn_mpi EXPORT attnMpiTargets)
  install(EXPORT attnMpiTargets NAMESPACE attn:: DESTINATION ${attn_package_dir})
else()
  list(APPEND attn_left_out REGEX "/attn/distributed/mpi\\.hpp$" EXCLUDE)
endif()
install(DIRECTORY include/attn DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*.inc" ${attn_left_out})
if(ATTN_INSTALL_COMPILED)
  install(TARGETS attn_compiled EXPORT attnCompiledTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT attnCompiledTargets NAMESPACE attn:: DESTINATION ${attn_package_dir})
endif()

configure_package_config_file(cmake/attnConfig.cmake.in ${PROJECT_BINARY_DIR}/attnConfig.cmake
  INSTALL_DESTINATION ${attn_package_dir}
  NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# Before 1.0 a minor version may change the interface. Headers do not depend on the architecture; the library does.
if(ATTN_INSTALL_COMPILED)
  set(attn_arch "")
else()
  set(attn_arch ARCH_INDEPENDENT)
endif()
write_basic_package_version_file(${PROJECT_BINARY_DIR}/attnConfigVersion.cmake
  COMPATIBILITY SameMinorVersion ${attn_arch})
install(FILES ${PROJECT_BINARY_DIR}/attnConfig.cmake ${PROJECT_BINARY_DIR}/attnConfigVersion.cmake
  DESTINATION ${attn_package_dir})

install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/attn)

# The prefix is relative to attn.pc, whose place pkg-config knows, so that the tree may be moved. Absolute directories
# do not move.
if(IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  set(attn_pc_prefix ${CMAKE_INSTALL_PREFIX})
else()
  file(RELATIVE_PATH attn_pc_to_prefix
    ${CMAKE_INSTALL_PREFIX}/${attn_pkgconfig_dir} ${CMAKE_INSTALL_PREFIX})
  string(REGEX REPLACE "/$" "" attn_pc_to_prefix "${attn_pc_to_prefix}")
  set(attn_pc_prefix "\${pcfiledir}/${attn_pc_to_prefix}")
endif()
foreach(kind INCLUDEDIR LIBDIR)
  set(attn_pc_${kind} "\${prefix}")
  cmake_path(APPEND attn_pc_${kind} "${CMAKE_INSTALL_${kind}}")  # replaces the prefix if it is absolute
endforeach()
set(attn_pc_pin "")
if(ATTN_PIN_ISA)
  set(attn_pc_pin " -DATTN_PIN_ISA=${ATTN_PIN_ISA}")
endif()
set(attn_pc_files attn)
if(ATTN_INSTALL_COMPILED)
  list(APPEND attn_pc_files attn-compiled)
endif()
foreach(name IN LISTS attn_pc_files)
  configure_file(cmake/${name}.pc.in ${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${attn_pkgconfig_dir})
endforeach()

# `cpack --config CPackConfig.cmake -G DEB` in the build directory makes a Debian package with the same files.
if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGE_NAME libattn-dev)
  set(CPACK_PACKAGE_CONTACT "The attn authors")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
  set(CPACK_DEBIAN_PACKAGE_DEPENDS "libeigen3-dev (>= 3.4)")
  if(ATTN_IO)
    string(APPEND CPACK_DEBIAN_PACKAGE_DEPENDS ", nlohmann-json3-dev (>= 3.10)")
  endif()
  if(ATTN_TEXT)
    string(APPEND CPACK_DEBIAN_PACKAGE_DEPENDS ", libutf8proc-dev (>= 2.4), pkg-config")
  endif()
  if(NOT ATTN_INSTALL_COMPILED)
    set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE all)
  endif()
  include(CPack)
endif()
