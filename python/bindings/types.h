// Types of Python by their names in signatures, for `help` and _core.pyi. Values are passed as any object, and checked
// where they are read.
#ifndef PARAMSHARD_PYTHON_BINDINGS_TYPES_H_
#define PARAMSHARD_PYTHON_BINDINGS_TYPES_H_

#include <nanobind/nanobind.h>

namespace paramshard::python {

namespace named {

inline bool IsAny(PyObject*) { return true; }

class Any : public nanobind::object {
  NB_OBJECT(Any, nanobind::object, "typing.Any", IsAny)
};
class Array : public nanobind::object {
  NB_OBJECT(Array, nanobind::object, "numpy.typing.NDArray[typing.Any]", IsAny)
};
class Floats : public nanobind::object {
  NB_OBJECT(Floats, nanobind::object, "numpy.typing.NDArray[numpy.float32]", IsAny)
};
class Checkpoint : public nanobind::object {
  NB_OBJECT(Checkpoint, nanobind::object, "str | int | os.PathLike[str]", IsAny)
};
class OptionalError : public nanobind::object {
  NB_OBJECT(OptionalError, nanobind::object, "paramshard.errors.Error | None", IsAny)
};
class Outputs : public nanobind::object {
  NB_OBJECT(Outputs, nanobind::object, "collections.abc.Mapping[str, typing.Any]", IsAny)
};
class Spec : public nanobind::object {
  NB_OBJECT(Spec, nanobind::object, "paramshard.spec.ModelSpec", IsAny)
};
class Tensors : public nanobind::object {
  NB_OBJECT(Tensors, nanobind::object,
            "collections.abc.Mapping[str, typing.Any] | collections.abc.Iterable[paramshard.tensors.ImportTensor]",
            IsAny)
};

}  // namespace named

// Type of a parameter, and of a result.
template <typename Type>
using Argument = nanobind::typed<nanobind::handle, Type>;
template <typename Type>
using Result = nanobind::typed<nanobind::object, Type>;

// Signature of __exit__, whose arguments are not used.
inline const nanobind::sig kExitSignature("def __exit__(self, *args: object) -> None");

// __enter__: returns the object itself.
template <typename Class>
Result<Class> Itself(Result<Class> self) {
  return self;
}

}  // namespace paramshard::python

#endif  // PARAMSHARD_PYTHON_BINDINGS_TYPES_H_
