/* SPDX-License-Identifier: Apache-2.0 */
/* The folders that are watched: found by inotify's number, and moved about as they are. */
#ifndef THAW_FILES_WATCH_TREE_H
#define THAW_FILES_WATCH_TREE_H

#include "guest/files/frame.h"

struct watch_node {
	int wd;
	struct watch_node *parent;	       /* NULL: what is watched itself */
	struct watch_node *child, *next, **at; /* the pointer that points here */
	struct watch_node *hash_next;
	char *name;
};

#define WATCH_BUCKETS 1024

struct watch_tree {
	int inotify;
	struct watch_node *top;
	struct watch_node *buckets[WATCH_BUCKETS];
};

struct watch_node *watch_tree_find(const struct watch_tree *tree, int wd);
struct watch_node *watch_tree_child(const struct watch_node *parent, const char *name);
/**
 * watch_tree_put() - @wd is the folder @name of @parent (NULL: the top). One that is known already
 * was moved: its node gets the new place.
 * Return: NULL: no memory.
 */
struct watch_node *watch_tree_put(struct watch_tree *tree, int wd, struct watch_node *parent,
				  const char *name);
/** watch_tree_drop() - forget @node and all below it; @unwatch: and tell inotify. */
void watch_tree_drop(struct watch_tree *tree, struct watch_node *node, bool unwatch);
/**
 * watch_tree_path() - path of @name in @node, relative to the top, into FILES_NAME_MAX_BYTES + 1.
 * Return: its length; one that is too long is cut at its beginning.
 */
size_t watch_tree_path(const struct watch_node *node, const char *name, char *out);

#endif
