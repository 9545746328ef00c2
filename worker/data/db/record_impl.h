/* Numbers of record.proto that reading and writing share. */
#ifndef CRUN_WORKER_DATA_RECORD_IMPL_H
#define CRUN_WORKER_DATA_RECORD_IMPL_H

enum { TENSOR_FLOAT = 1, TENSOR_INT32 = 2, TENSOR_BYTE = 3, TENSOR_STRING = 4, TENSOR_INT64 = 10 }; /* data_type */

#endif
