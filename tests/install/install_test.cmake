function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${work_dir})
run(${CMAKE_COMMAND} --install ${build_dir} --prefix ${work_dir}/prefix)
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${work_dir}/build -G ${generator}
  -D CMAKE_PREFIX_PATH=${work_dir}/prefix -D CMAKE_CXX_COMPILER=${compiler}
  -D PARAMSHARD_SOURCES=${CMAKE_CURRENT_LIST_DIR}/../..)
run(${CMAKE_COMMAND} --build ${work_dir}/build)
run(${work_dir}/build/consumer ${work_dir}/no-daemon)
run(${work_dir}/build/former_names)
