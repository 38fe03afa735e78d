# `cmake --install` puts beside the programs: the client library as the package paramshard, the protos, and the
# files of deploy/.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/paramshard)

# Every library of ours that `target` needs, itself included.
function(paramshard_collect_libraries target result)
  set(libraries ${target})
  get_target_property(dependencies ${target} INTERFACE_LINK_LIBRARIES)
  foreach(dependency IN LISTS dependencies)
    if(dependency MATCHES "^paramshard_" AND NOT dependency STREQUAL "paramshard_flags"
       AND NOT dependency IN_LIST libraries)
      paramshard_collect_libraries(${dependency} more)
      list(APPEND libraries ${more})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES libraries)
  set(${result} ${libraries} PARENT_SCOPE)
endfunction()

set(client paramshard_client)
if(TARGET paramshard_client_cuda)
  set(client paramshard_client_cuda)
endif()
paramshard_collect_libraries(${client} libraries)
install(TARGETS ${libraries} EXPORT paramshardTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  COMPONENT development)
install(EXPORT paramshardTargets NAMESPACE paramshard:: DESTINATION ${package_dir} COMPONENT development)

# The client's headers and what they include, under the paths that it is included by: "client/client.h".
set(headers
  client/client.h
  client/plan.h
  client/reader.h
  kernels/base/host_device.h
  kernels/formats/codec.h
  kernels/formats/delayed_scaling.h
  kernels/formats/format.h
  kernels/formats/format_id.h
  kernels/formats/scale_layout.h
  kernels/optim/fused_step.h
  kernels/optim/hyperparameters.h
  kernels/optim/moment.h
  kernels/optim/moment_kind.h
  kernels/optim/muon_options.h
  kernels/optim/optimizer_step.h
  kernels/optim/state_types.h
  kernels/random/initial_values.h
  kernels/reduce/gradient.h
  kernels/reduce/gradient_sum.h
  kernels/reduce/position_digest.h
  kernels/reduce/sum_of_squares.h
  common/model/save_state.h
  common/model/model_spec.h
  common/model/phase.h
  common/model/tensor_kind.h)
if(TARGET paramshard_client_cuda)
  list(APPEND headers client/cuda.h kernels/formats/codec_cuda.h)
endif()
foreach(header IN LISTS headers)
  cmake_path(GET header PARENT_PATH folder)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/paramshard/${folder}
    COMPONENT development)
endforeach()

# Paths of version 0.1 before these headers lay in common/: they go with the next version.
foreach(header model_spec phase tensor_kind)
  set(forward ${PROJECT_BINARY_DIR}/forwards/${header}.h)
  file(CONFIGURE OUTPUT ${forward} @ONLY CONTENT
    "#pragma message(\"proto/model/@header@.h is common/model/@header@.h now\")\n#include \"common/model/@header@.h\"\n")
  install(FILES ${forward} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/paramshard/proto/model COMPONENT development)
endforeach()

install(DIRECTORY ${PROJECT_SOURCE_DIR}/proto/paramshard DESTINATION ${CMAKE_INSTALL_DATADIR}/paramshard/proto
  COMPONENT development
  FILES_MATCHING PATTERN *.proto)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/deploy DESTINATION ${CMAKE_INSTALL_DATADIR}/paramshard COMPONENT runtime
  USE_SOURCE_PERMISSIONS)

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/paramshardConfig.cmake.in
  ${PROJECT_BINARY_DIR}/paramshardConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/paramshardConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/paramshardConfig.cmake ${PROJECT_BINARY_DIR}/paramshardConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT development)
