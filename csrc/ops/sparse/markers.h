// ANYMPS_FUNC (ops/registration.h) for sparse tensors: in coordinates, of the dispatch key SparseMPS, and
// compressed ones, of SparseCsrMPS.
#pragma once

#define ANYMPS_SPARSE_FUNC(name) name##_sparse
#define ANYMPS_SPARSE_CSR_FUNC(name) name##_sparse_csr
