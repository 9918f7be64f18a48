/* SPDX-License-Identifier: Apache-2.0
 *
 * agree.c - one status and one sentence on all ranks; messages around the ring.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "mpi/ring.h"

attn_status fail(attn_error *error, attn_status status, const char *format, ...) {
    if (error != NULL) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(error->text, sizeof error->text, format, arguments);
        va_end(arguments);
    }
    return status;
}

attn_status fail_mpi(attn_error *error, int code, const char *function) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) {
        snprintf(text, sizeof text, "error %d", code);
    }
    return fail(error, ATTN_DEVICE, "%s: %s", function, text);
}

attn_status agree(MPI_Comm comm, attn_status status, attn_error *error) {
    struct {
        int status;
        attn_error error;
    } first = {(int)status, {""}};
    int rank = 0, ranks = 1, who = 0, code = MPI_Comm_rank(comm, &rank);
    if (code == MPI_SUCCESS) {
        code = MPI_Comm_size(comm, &ranks);
    }
    const int mine = status != ATTN_OK ? rank : ranks;
    if (code == MPI_SUCCESS) {
        code = MPI_Allreduce(&mine, &who, 1, MPI_INT, MPI_MIN, comm);
    }
    if (code != MPI_SUCCESS) {
        return fail_mpi(error, code, "MPI_Allreduce");
    }
    if (who == ranks) {
        return fail(error, ATTN_OK, "%s", "");
    }
    if (error != NULL) {
        first.error = *error;
    }
    code = MPI_Bcast(&first, (int)sizeof first, MPI_BYTE, who, comm);
    if (code != MPI_SUCCESS) {
        return fail_mpi(error, code, "MPI_Bcast");
    }
    return fail(error, (attn_status)first.status, "rank %d: %.*s", who,
                (int)sizeof first.error.text - 24, first.error.text);
}

attn_status agree_on(MPI_Comm comm, const char *const *names, const int64_t *numbers, int count,
                     attn_error *error) {
    enum { MOST = 32 };
    int64_t mine[2 * MOST] = {0}, least[2 * MOST]; /* numbers; their negatives, for the largest */
    for (int i = 0; i < count; i++) {
        mine[i] = numbers[i];
        mine[count + i] = -numbers[i];
    }
    const int code = MPI_Allreduce(mine, least, 2 * count, MPI_INT64_T, MPI_MIN, comm);
    if (code != MPI_SUCCESS) {
        return fail_mpi(error, code, "MPI_Allreduce");
    }
    for (int i = 0; i < count; i++) {
        if (least[i] != -least[count + i]) {
            return fail(error, ATTN_INVALID,
                        "%s is %lld on one rank and %lld on another, expected the same on all",
                        names[i], (long long)least[i], -(long long)least[count + i]);
        }
    }
    return ATTN_OK;
}

/* ---- messages -------------------------------------------------------------------------------- */

attn_status post(const attn_mpi_plan *plan, const MPI_Datatype rows[2], const void *const from[2],
                 void *const to[2], int tag, MPI_Request requests[4], attn_error *error) {
    const int next = (plan->rank + 1) % plan->ranks;
    const int before = (plan->rank + plan->ranks - 1) % plan->ranks;
    for (int i = 0; i < 2; i++) {
        int code =
            MPI_Irecv(to[i], plan->rows_kv, rows[i], before, tag + i, plan->comm, &requests[2 * i]);
        if (code != MPI_SUCCESS) {
            return fail_mpi(error, code, "MPI_Irecv");
        }
        code = MPI_Isend(from[i], plan->rows_kv, rows[i], next, tag + i, plan->comm,
                         &requests[2 * i + 1]);
        if (code != MPI_SUCCESS) {
            return fail_mpi(error, code, "MPI_Isend");
        }
    }
    return ATTN_OK;
}

attn_status wait_all(MPI_Request *requests, int count, attn_error *error) {
    const int code = MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    return code == MPI_SUCCESS ? ATTN_OK : fail_mpi(error, code, "MPI_Waitall");
}

void call_wait(struct call *call) {
    const int code = call->plan->wait != NULL ? call->plan->wait(call->stream) : 0;
    if (code != 0 && call->status == ATTN_OK) {
        call->status = fail(&call->error, ATTN_DEVICE, "options.wait returned %d", code);
    }
}
