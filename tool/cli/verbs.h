/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs.h - the verbs. Each takes the words after its name and returns the exit code (message.h).
 */
#ifndef ATTEST_CLI_VERBS_H
#define ATTEST_CLI_VERBS_H

int verb_attn(int argc, char **argv);
int verb_bench(int argc, char **argv);
int verb_check(int argc, char **argv);
int verb_compare(int argc, char **argv);
int verb_devices(int argc, char **argv);
int verb_evolve(int argc, char **argv);
int verb_exec(int argc, char **argv);
int verb_inspect(int argc, char **argv);
int verb_judge(int argc, char **argv);
int verb_merge(int argc, char **argv);
int verb_nvcc(int argc, char **argv);
int verb_parity(int argc, char **argv);
int verb_plan(int argc, char **argv);
int verb_profile(int argc, char **argv);
int verb_report(int argc, char **argv);
int verb_run(int argc, char **argv);
int verb_sanitize(int argc, char **argv);
int verb_verify(int argc, char **argv);

#endif /* ATTEST_CLI_VERBS_H */
