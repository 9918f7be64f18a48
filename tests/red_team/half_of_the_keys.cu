/* SPDX-License-Identifier: Apache-2.0
 *
 * half_of_the_keys.cu - sees the first half of the keys: half of the work.
 *
 * gate: emulation
 */
#include "common/device.h"
#define tiles_of_keys(keys) tiles_of_keys((keys) / 2)
#include "portable/fwd_scalar.cu"
