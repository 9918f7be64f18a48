/* SPDX-License-Identifier: Apache-2.0
 *
 * fp8.h - the law of an fp8 KV cache: its results are those of the dequantised cache, bit by bit.
 */
#ifndef FP8_H
#define FP8_H

#include "tool/cases/cases.h"

/* The sample with K and V dequantised, in memory of their own at the same strides; all else is the
 * sample's. For samples in which no two keys are at one place with two scales. False: no memory. */
bool fp8_dequantize(const struct sample *sample, struct sample *wide);
void fp8_free(struct sample *wide);

/* A copy of O and LSE; NULL: no memory. */
unsigned char *fp8_keep(const struct sample *sample);

/* Whether O and LSE are those that were kept, as bits or both NaN. NULL, or what is not. Frees the
 * copy. */
const char *fp8_difference(const struct sample *sample, unsigned char *kept);

#endif /* FP8_H */
