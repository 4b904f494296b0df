// SPDX-License-Identifier: Apache-2.0
// The folders that are watched.
#include "guest/files/watch_tree.h"

#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>

static struct watch_node **bucket(struct watch_tree *tree, int wd)
{
	return &tree->buckets[(unsigned int)wd % WATCH_BUCKETS];
}

struct watch_node *watch_tree_find(const struct watch_tree *tree, int wd)
{
	struct watch_node *node = tree->buckets[(unsigned int)wd % WATCH_BUCKETS];

	while (node && node->wd != wd)
		node = node->hash_next;
	return node;
}

struct watch_node *watch_tree_child(const struct watch_node *parent, const char *name)
{
	struct watch_node *node = parent->child;

	while (node && strcmp(node->name, name))
		node = node->next;
	return node;
}

static void unlink_node(struct watch_node *node)
{
	if (!node->at)
		return;
	*node->at = node->next;
	if (node->next)
		node->next->at = node->at;
	node->at = NULL;
	node->next = NULL;
}

static void link_node(struct watch_node *node, struct watch_node *parent)
{
	node->parent = parent;
	if (!parent)
		return;
	node->next = parent->child;
	node->at = &parent->child;
	if (node->next)
		node->next->at = &node->next;
	parent->child = node;
}

/* A folder can't come to be below itself; a hostile file system may say it did. */
static bool is_above(const struct watch_node *node, const struct watch_node *below)
{
	while (below && below != node)
		below = below->parent;
	return below;
}

struct watch_node *watch_tree_put(struct watch_tree *tree, int wd, struct watch_node *parent,
				  const char *name)
{
	struct watch_node *node = watch_tree_find(tree, wd);
	char *copy = strdup(name);

	if (!copy)
		return NULL;
	if (!node) {
		node = calloc(1, sizeof(*node));
		if (!node) {
			free(copy);
			return NULL;
		}
		node->wd = wd;
		node->hash_next = *bucket(tree, wd);
		*bucket(tree, wd) = node;
	} else if (is_above(node, parent)) {
		free(copy);
		return node;
	}
	unlink_node(node);
	free(node->name);
	node->name = copy;
	link_node(node, parent);
	if (!parent)
		tree->top = node;
	return node;
}

void watch_tree_drop(struct watch_tree *tree, struct watch_node *node, bool unwatch)
{
	struct watch_node *stop = node->parent, *at = node;

	/* Leaves first, without recursion: trees are as deep as somebody in the guest likes. */
	while (at != stop) {
		struct watch_node *parent = at->parent, **link;

		if (at->child) {
			at = at->child;
			continue;
		}
		if (unwatch)
			inotify_rm_watch(tree->inotify, at->wd);
		for (link = bucket(tree, at->wd); *link != at; link = &(*link)->hash_next)
			;
		*link = at->hash_next;
		unlink_node(at);
		if (at == tree->top)
			tree->top = NULL;
		free(at->name);
		free(at);
		if (at == node)
			break;
		at = parent;
	}
}

size_t watch_tree_path(const struct watch_node *node, const char *name, char *out)
{
	size_t room = FILES_NAME_MAX_BYTES, at = room, len;

	/* From its end. */
	while (node && name) {
		len = strlen(name);
		if (len + 1 > at)
			break;
		if (at < room && len)
			out[--at] = '/';
		at -= len;
		memcpy(out + at, name, len);
		name = node->parent ? node->name : NULL;
		node = node->parent;
	}
	memmove(out, out + at, room - at);
	out[room - at] = '\0';
	return room - at;
}
