/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A Python extension with a leak: keep(BYTES) allocates a block, without the GIL, and forgets it. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdlib.h>

__attribute__((noinline)) static void forget_block(size_t bytes)
{
	*(volatile char *)malloc(bytes) = 1;
}

static PyObject *keep(PyObject *module, PyObject *bytes)
{
	size_t wanted = PyLong_AsSize_t(bytes);

	(void)module;
	if (PyErr_Occurred())
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	forget_block(wanted);
	Py_END_ALLOW_THREADS;
	Py_RETURN_NONE;
}

static PyMethodDef methods[] = { { "keep", keep, METH_O, NULL }, { NULL, NULL, 0, NULL } };
static struct PyModuleDef module = { PyModuleDef_HEAD_INIT, "extension", NULL, 0, methods, NULL, NULL, NULL, NULL };

PyMODINIT_FUNC PyInit_extension(void)
{
	return PyModuleDef_Init(&module);
}
