/* SPDX-License-Identifier: Apache-2.0
 *
 * dependencies.c - see driver.h: which nodes of a graph come before which, for streams.c. Nodes run
 * in the order in which they were added; on a GPU only dependencies order them.
 *
 * A capturing stream and an event recorded in it know which nodes come before the next one. Child
 * graphs, conditional nodes and captures whose dependencies the program changes are not followed:
 * all nodes of such a graph count as ordered.
 *
 * Invariant: the ancestors of a node are complete: with those of each of them.
 */
#include "driver/driver.h"

static void join(struct ancestors *into, const struct ancestors *from) {
    for (int i = 0; i < GRAPH_NODES / 64; i++) {
        into->bits[i] |= from->bits[i];
    }
}

static void set(struct ancestors *into, uint32_t index) {
    if (index < GRAPH_NODES) {
        into->bits[index / 64] |= 1ULL << index % 64;
    }
}

bool ancestors_have(const struct ancestors *ancestors, uint32_t index) {
    return (ancestors->bits[index / 64] >> index % 64 & 1) != 0;
}

/* The node and what comes before it. */
static void join_node(struct ancestors *into, const struct node *node) {
    join(into, &node->before);
    set(into, node->index);
}

static struct node *node_of(const struct object *graph, const void *handle) {
    struct node *node = graph->first;
    while (node != NULL && node != handle) {
        node = node->next;
    }
    return node;
}

void depends_begin(struct object *stream, struct object *graph, void *const *nodes, size_t count) {
    stream->after = (struct ancestors){{0}};
    for (size_t i = 0; i < count && nodes != NULL; i++) {
        const struct node *node = node_of(graph, nodes[i]);
        if (node != NULL) {
            join_node(&stream->after, node);
        } else {
            graph->unordered = true;
        }
    }
}

void depends_append(struct object *graph, struct object *stream, struct node *node) {
    node->index = graph->node_count++;
    graph->unordered |= stream == NULL || node->index >= GRAPH_NODES;
    if (stream != NULL) {
        node->before = stream->after;
        set(&stream->after, node->index);
    }
}

void depends_copy(struct object *graph, const struct object *from) {
    graph->unordered |= from->unordered || graph->node_count > 0;
    graph->node_count += from->node_count;
}

void depends_await(struct object *stream, const struct object *event) {
    join(&stream->after, &event->after);
}

bool depends_partly(const struct object *graph) {
    if (graph->unordered || graph->node_count < 2) {
        return false;
    }
    for (const struct node *node = graph->first; node != NULL; node = node->next) {
        for (uint32_t i = 0; i < node->index; i++) {
            if (!ancestors_have(&node->before, i)) {
                return true;
            }
        }
    }
    return false;
}

/* Not a function of CUDA: a dependency between nodes that there are, `from` before `to`. */
int vgpuGraphDepend(void *graph, const void *from, const void *to) {
    DRIVER_ENTER();
    struct object *found = object_find(graph, OBJECT_GRAPH);
    const struct node *first = found != NULL ? node_of(found, from) : NULL;
    struct node *second = found != NULL ? node_of(found, to) : NULL;
    if (first == NULL || second == NULL || found->unordered) {
        return first == NULL || second == NULL ? CU_INVALID_VALUE : CU_SUCCESS;
    }
    join_node(&second->before, first);
    for (struct node *at = second->next; at != NULL; at = at->next) {
        if (ancestors_have(&at->before, second->index)) {
            join(&at->before, &second->before);
        }
    }
    return CU_SUCCESS;
}
