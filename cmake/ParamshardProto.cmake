# paramshard_proto_library(<name> <protos>...)
#
# Messages and gRPC services of protos, named relative to the calling folder. paramshard/v1/trainer.proto is included as
# "paramshard/v1/trainer.pb.h" and "paramshard/v1/trainer.grpc.pb.h".
function(paramshard_proto_library name)
  set(generated_dir ${CMAKE_CURRENT_BINARY_DIR}/generated)
  file(MAKE_DIRECTORY ${generated_dir})

  set(sources)
  foreach(proto IN LISTS ARGN)
    string(REGEX REPLACE "\\.proto$" "" stem ${generated_dir}/${proto})
    set(outputs ${stem}.pb.h ${stem}.pb.cc ${stem}.grpc.pb.h ${stem}.grpc.pb.cc)
    add_custom_command(
      OUTPUT ${outputs}
      COMMAND protobuf::protoc
        --proto_path=${CMAKE_CURRENT_SOURCE_DIR}
        --cpp_out=${generated_dir}
        --grpc_out=${generated_dir}
        --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin>
        ${CMAKE_CURRENT_SOURCE_DIR}/${proto}
      # Protos import each other: any change regenerates all.
      DEPENDS ${ARGN}
      COMMENT "Generating C++ from ${proto}"
      VERBATIM)
    list(APPEND sources ${outputs})
  endforeach()

  add_library(${name} STATIC ${sources})
  _paramshard_name_library(${name})
  # SYSTEM: warnings in generated headers are nobody's.
  target_include_directories(${name} SYSTEM PUBLIC $<BUILD_INTERFACE:${generated_dir}>)
  target_compile_options(${name} PRIVATE -w)
  target_link_libraries(${name} PUBLIC gRPC::grpc++ protobuf::libprotobuf)
endfunction()
