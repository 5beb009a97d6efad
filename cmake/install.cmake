# The installed package: headers, the compiled kernels, CMake package `attn` with the component `io`, and a pkg-config file.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(attn_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attn)
set(attn_pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(TARGETS attn attn_compiled EXPORT attnTargets
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILE_SET kernel_text DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})  # for a user's CMake before 3.23, which knows no file sets
install(EXPORT attnTargets NAMESPACE attn:: DESTINATION ${attn_package_dir})

# An export set of its own: who uses attn::attn alone need not have a JSON parser.
if(ATTN_IO)
  install(TARGETS attn_io EXPORT attnIoTargets
    FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT attnIoTargets NAMESPACE attn:: DESTINATION ${attn_package_dir})
endif()

configure_package_config_file(cmake/attnConfig.cmake.in ${PROJECT_BINARY_DIR}/attnConfig.cmake
  INSTALL_DESTINATION ${attn_package_dir}
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/attnConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)  # before 1.0 a minor version may change the interface
install(FILES ${PROJECT_BINARY_DIR}/attnConfig.cmake ${PROJECT_BINARY_DIR}/attnConfigVersion.cmake
  DESTINATION ${attn_package_dir})

# pkg-config knows where attn.pc lies; the prefix is written relative to that, so that the tree may be moved.
file(RELATIVE_PATH attn_pc_to_prefix
  ${CMAKE_INSTALL_PREFIX}/${attn_pkgconfig_dir} ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" attn_pc_to_prefix "${attn_pc_to_prefix}")
configure_file(cmake/attn.pc.in attn.pc @ONLY)
configure_file(cmake/attn-compiled.pc.in attn-compiled.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/attn.pc ${PROJECT_BINARY_DIR}/attn-compiled.pc DESTINATION ${attn_pkgconfig_dir})
