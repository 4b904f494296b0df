# SPDX-License-Identifier: Apache-2.0
# One non-recursive Makefile. `make help` lists the targets and knobs.

.DELETE_ON_ERROR:
.SECONDARY:
.SUFFIXES:
SHELL := /bin/bash
# As many jobs as processors, unless the caller says otherwise or names several goals: `make clean all` and `make demo test` mean one
# after the other.
ifeq ($(filter -j% --jobs%,$(MAKEFLAGS))$(word 2,$(MAKECMDGOALS)),)
MAKEFLAGS += -j$(shell nproc)
endif

# --- knobs -------------------------------------------------------------------------------------------------------

V      ?= 0
DEBUG  ?= 0
WERROR ?= 1
SAN    ?=
CC     := $(if $(filter default undefined,$(origin CC)),gcc,$(CC))
CXX    := $(if $(filter default undefined,$(origin CXX)),g++,$(CXX))
CLANG  ?= clang
LLVM_STRIP ?= llvm-strip
# Ubuntu's is part of its kernel's tools; what /usr/sbin has there is a wrapper that looks for those of the running kernel.
BPFTOOL ?= $(shell for tool in bpftool /usr/sbin/bpftool /usr/lib/linux-tools*/bpftool /usr/lib/linux-tools/*/bpftool; do \
	"$$tool" version >/dev/null 2>&1 && echo "$$tool" && break; done)
PKG_CONFIG ?= pkg-config
PREFIX  ?= /usr/local
DESTDIR ?=
FUZZ_SECONDS ?= 10

comma := ,
empty :=
space := $(empty) $(empty)
CONFIG := $(if $(SAN),san-$(subst $(comma),-,$(SAN)),$(if $(filter 1,$(DEBUG)),debug,release))
B := build/$(CONFIG)
F := build/fuzz
Q := $(if $(filter 1,$(V)),,@)
say = $(if $(filter 1,$(V)),,@printf '  %-8s %s\n' '$(1)' '$(2)')

# --- sources: explicit, one list a part -----------------------------------------------------------------------------

UTIL_SRCS := vmm/util/log.c vmm/util/util.c vmm/util/ev.c vmm/util/ctl.c vmm/util/ring.c vmm/util/usock.c vmm/util/httpc.c vmm/util/httpc_parse.c

KVM_SRCS := vmm/kvm/gmem.c vmm/kvm/bus.c vmm/kvm/ioapic.c vmm/kvm/acpi.c vmm/kvm/boot.c vmm/kvm/cpuid.c vmm/kvm/msr.c \
	vmm/kvm/serial.c vmm/kvm/thawdev.c vmm/kvm/vcpu.c vmm/kvm/vcpu_state.c vmm/kvm/vm.c vmm/kvm/vm_mem.c vmm/kvm/vm_loop.c \
	vmm/kvm/vm_ctl.c vmm/seccomp.c vmm/opts.c vmm/zygote.c vmm/kvm/vm_owner.c vmm/snapreq.c

VIRTIO_SRCS := vmm/virtio/virtq.c vmm/virtio/virtio.c vmm/virtio/mmio.c vmm/virtio/console.c vmm/virtio/rng.c \
	vmm/virtio/pmem.c vmm/virtio/blk.c vmm/virtio/blk_io.c vmm/virtio/blk_parse.c vmm/virtio/blk_map.c vmm/virtio/blk_image.c \
	vmm/virtio/vsock.c vmm/virtio/vsock_rx.c vmm/virtio/vsock_conn.c vmm/virtio/vsock_sock.c vmm/virtio/vsock_table.c

SNAPSHOT_SRCS := vmm/snapshot/digest.c vmm/snapshot/parse.c vmm/snapshot/build.c vmm/snapshot/manifest.c vmm/snapshot/cpu.c \
	vmm/snapshot/cpu_names.c vmm/snapshot/open.c vmm/snapshot/verify.c vmm/snapshot/mem.c vmm/snapshot/mem_mmap.c \
	vmm/snapshot/mem_copy.c vmm/snapshot/mem_ws.c vmm/snapshot/mem_map.c vmm/snapshot/mem_memfd.c vmm/snapshot/mem_uring.c vmm/snapshot/mem_fixed.c vmm/snapshot/mem_uffd.c vmm/snapshot/pager.c vmm/snapshot/pager_server.c vmm/snapshot/restore_opts.c vmm/snapshot/warm.c vmm/snapshot/warm_populate.c vmm/snapshot/warm_fetch.c vmm/snapshot/hot.c vmm/snapshot/hot_record.c vmm/snapshot/bulk.c vmm/snapshot/diff.c vmm/snapshot/write_mem.c vmm/snapshot/write_diff.c vmm/snapshot/flatten.c vmm/snapshot/write_dir.c vmm/snapshot/write.c \
	vmm/snapshot/collect.c vmm/snapshot/restore.c

CLI_SRCS := guest/shim/frame.c guest/shim/parse.c vmm/cli/exec.c vmm/cli/exec_request.c vmm/cli/cli.c vmm/cli/optparse.c vmm/cli/run_opts.c vmm/cli/run.c vmm/cli/recipe.c vmm/cli/state.c vmm/cli/vmmproc.c \
	vmm/cli/json_out.c vmm/cli/progress.c vmm/cli/assets.c vmm/cli/template.c vmm/cli/lineage.c vmm/cli/template_build.c vmm/cli/template_guest.c vmm/cli/template_hot.c \
	vmm/cli/pool.c vmm/cli/pool_client.c vmm/cli/pool_serve.c vmm/cli/pool_shells.c vmm/cli/run_pool.c \
	vmm/cli/kvmkind.c vmm/cli/doctor.c vmm/cli/doctor_run.c vmm/cli/doctor_kernel.c

# Sandboxes that stay.
CLI_SRCS += vmm/cli/exec_status.c vmm/cli/vmmproc_own.c vmm/cli/sandbox.c vmm/cli/sandbox_start.c vmm/cli/sandbox_sweep.c \
	vmm/cli/run_detached.c vmm/cli/exec_cmd.c vmm/cli/fork.c vmm/cli/pause.c vmm/cli/local_end.c

# Commands that ask thawd, and what they share. main.c has the table of all commands: it is no part of the library.
CLI_SRCS += vmm/cli/client.c vmm/cli/client_more.c vmm/cli/verb.c vmm/cli/spec_opts.c vmm/cli/exec_out.c vmm/cli/exec_api.c vmm/cli/tty.c \
	vmm/cli/base64.c vmm/cli/run_thawd.c vmm/cli/cmd_life.c vmm/cli/cmd_box.c vmm/cli/cmd_stats.c vmm/cli/cmd_events.c \
	vmm/cli/cmd_snapshot.c vmm/cli/cmd_logs.c vmm/cli/cmd_cp.c vmm/cli/cp_path.c vmm/cli/cp_tar.c vmm/cli/cmd_forward.c vmm/cli/cmd_template.c vmm/cli/completion.c

SHIM_SRCS := guest/shim/main.c guest/shim/boot.c guest/shim/mount.c guest/shim/device.c guest/shim/loop.c guest/shim/conn.c \
	guest/shim/pump.c guest/shim/exec.c guest/shim/spawn.c guest/shim/cgroup.c guest/shim/ckpt.c guest/shim/log.c \
	guest/shim/frame.c guest/shim/parse.c guest/shim/orphan.c guest/shim/ring.c guest/shim/kept.c guest/shim/request.c \
	guest/shim/pty.c guest/shim/tunnel.c guest/shim/usage.c

# Recording the hot set: parts of both.
HOT_SRCS := vmm/snapshot/hot_set.c vmm/cli/hot_plan.c vmm/cli/hot_recorder.c vmm/cli/hot_bpf.c vmm/cli/hot_show.c \
	vmm/cli/hot_options.c vmm/cli/template_record.c

# What keeps templates whole: leftovers of killed commands, fs-verity.
KEEP_SRCS := vmm/cli/sweep.c vmm/snapshot/seal.c

# Packs: parts of both.
PACK_SRCS := vmm/snapshot/pack_format.c vmm/snapshot/pack_codec.c vmm/snapshot/pack_deflate.c vmm/snapshot/pack_io.c vmm/snapshot/pack_pool.c vmm/snapshot/pack_write.c \
	vmm/snapshot/pack_read.c vmm/snapshot/pack_place.c vmm/snapshot/pack_file.c vmm/snapshot/mem_pack.c vmm/cli/template_pack.c

# thawd: the daemon, all but its main.c.
DAEMON_SRCS := vmm/daemon/conf.c vmm/daemon/conf_table.c vmm/daemon/sdnotify.c vmm/daemon/route.c vmm/daemon/auth.c vmm/daemon/http.c vmm/daemon/http_listen.c \
	vmm/daemon/http_conn.c vmm/daemon/http_serve.c vmm/daemon/http_work.c vmm/daemon/http_req.c vmm/daemon/http_body.c vmm/daemon/http_reply.c \
	vmm/daemon/http_stream.c vmm/daemon/http_upgrade.c vmm/daemon/notes.c vmm/daemon/events.c vmm/daemon/audit.c vmm/daemon/metrics.c vmm/daemon/api_core.c

# Ports and previews.
DAEMON_SRCS += vmm/daemon/api_ports.c vmm/daemon/proxy.c vmm/daemon/proxy_headers.c vmm/daemon/proxy_connect.c vmm/daemon/proxy_pump.c vmm/daemon/preview.c

# Boxes.
DAEMON_SRCS += vmm/daemon/boxes.c vmm/daemon/box.c vmm/daemon/box_spec.c vmm/daemon/box_spec_out.c vmm/daemon/box_row.c vmm/daemon/box_create.c vmm/daemon/box_start.c \
	vmm/daemon/box_stop.c vmm/daemon/box_use.c vmm/daemon/box_pause.c vmm/daemon/box_fork.c vmm/daemon/box_snap.c vmm/daemon/box_template.c vmm/daemon/box_super.c vmm/daemon/db.c \
	vmm/daemon/reconcile.c vmm/daemon/timer.c vmm/daemon/quota.c vmm/daemon/pools.c vmm/daemon/api_sandboxes.c vmm/daemon/api_lifecycle.c vmm/daemon/api_snapshots.c \
	vmm/daemon/api_templates.c vmm/daemon/api_pools.c

# Execs.
DAEMON_SRCS += vmm/daemon/exec_text.c vmm/daemon/exec_log.c vmm/daemon/exec_guest.c vmm/daemon/exec_kept.c vmm/daemon/exec_boxes.c vmm/daemon/exec_reader.c vmm/daemon/exec_meta.c \
	vmm/daemon/exec_pull.c vmm/daemon/exec_end.c vmm/daemon/exec_spec.c vmm/daemon/exec_start.c vmm/daemon/exec_box.c vmm/daemon/ws.c \
	vmm/daemon/api_exec.c vmm/daemon/api_exec_call.c vmm/daemon/api_exec_run.c vmm/daemon/api_exec_list.c vmm/daemon/api_exec_frames.c \
	vmm/daemon/api_exec_ws.c vmm/daemon/api_logs.c vmm/daemon/api_wait_log.c

# Files.
DAEMON_SRCS += vmm/daemon/api_files.c vmm/daemon/files_request.c vmm/daemon/files_run.c vmm/daemon/files_text.c vmm/daemon/files_read.c \
	vmm/daemon/files_write.c vmm/daemon/files_list.c vmm/daemon/files_watch.c

# The jail, and what is opened before it.
JAIL_SRCS := vmm/jail/jail.c vmm/jail/uid.c vmm/jail/cgroup.c vmm/jail/enter.c vmm/jail/filter.c vmm/jail/detach.c \
	vmm/snapshot/part.c vmm/snapshot/handed.c vmm/util/kvmdev.c vmm/cli/vmmproc_spawn.c vmm/cli/doctor_jail.c vmm/cli/pool_jail.c vmm/cli/sandbox_jail.c vmm/cli/sandbox_stage.c vmm/jailed.c vmm/request.c vmm/kvm/vm_deadline.c

LIB_SRCS := $(JAIL_SRCS) $(KEEP_SRCS) $(PACK_SRCS) $(HOT_SRCS) $(UTIL_SRCS) $(KVM_SRCS) $(VIRTIO_SRCS) $(SNAPSHOT_SRCS) $(CLI_SRCS)

UNIT_TESTS := test_heap test_hot test_pager test_pager_vm test_gmem test_bus test_ioapic test_acpi test_cpuid test_boot test_vmm_opts test_thawdev test_seccomp test_machine \
	test_ring test_virtq test_mmio test_virtio_restore test_virtio_devices test_blk test_blk_model test_recipe test_run_opts test_json_out test_vsock test_vsock_dev test_vsock_restore test_snapshot test_manifest test_mem test_warm test_snap_cpu test_snap_write test_snap_fail test_diff test_snap_kvm test_frame test_exec test_usock test_ctl

FUZZERS := fuzz_virtq fuzz_mmio fuzz_blk fuzz_vsock fuzz_snapshot fuzz_manifest fuzz_diff fuzz_frame

UNIT_TESTS += test_jail test_stage test_pack test_pack_lies test_seal
FUZZERS += fuzz_pack

UNIT_TESTS += test_machine_wait test_zygote test_owner

UNIT_TESTS += test_hot_set test_hot_plan test_hot_bpf
FUZZERS += fuzz_hot

# Tests and fuzzers of thawd's own code: with its library in front of the rest.
DAEMON_TESTS := test_route test_proxy
DAEMON_TESTS += test_box_spec test_box_timer test_box_db
DAEMON_TESTS += test_exec_log test_exec_guest test_exec_text test_exec_spec test_ws
UNIT_TESTS += $(DAEMON_TESTS)
DAEMON_FUZZERS := fuzz_http
DAEMON_FUZZERS += fuzz_exec_guest fuzz_ws
DAEMON_FUZZERS += fuzz_files
FUZZERS += $(DAEMON_FUZZERS)
UNIT_TESTS += test_httpc test_httpc_bad test_cli
UNIT_TESTS += test_output_ring
FUZZERS += fuzz_ring
FUZZERS += fuzz_httpc

# thaw-files: file operations in the guest; frame.c is the host's, too.
FILES_SRCS := guest/files/main.c guest/files/out.c guest/files/frame.c guest/files/io.c guest/files/node.c guest/files/list.c \
	guest/files/remove.c guest/files/confine.c guest/files/tar_out.c guest/files/tar_in.c guest/files/watch.c guest/files/watch_tree.c
LIB_SRCS += guest/files/frame.c
UNIT_TESTS += test_files_frame
FUZZ_EXTRA_fuzz_files := guest/files/tar_in.c -larchive

# The tests' vsock driver.
UNIT_EXTRA_test_jail := tests/jail/attempts.c
UNIT_EXTRA_test_vsock := tests/unit/vsock_rig.c
UNIT_EXTRA_test_vsock_dev := tests/unit/vsock_rig.c
UNIT_EXTRA_test_vsock_restore := tests/unit/vsock_rig.c
FUZZ_EXTRA_fuzz_vsock := tests/unit/vsock_rig.c
UNIT_EXTRA_test_output_ring := guest/shim/ring.c
FUZZ_EXTRA_fuzz_ring := guest/shim/ring.c

# --- flags -------------------------------------------------------------------------------------------------------

WARN := -Wall -Wextra -Wshadow -Wvla -Wundef -Wformat=2 -Wimplicit-fallthrough -Wswitch-enum \
	$(if $(filter 1,$(WERROR)),-Werror)
WARN_C := $(WARN) -Wstrict-prototypes -Wmissing-prototypes
HARDEN := -fstack-protector-strong $(if $(SAN)$(filter 1,$(DEBUG)),,-D_FORTIFY_SOURCE=2) -fno-strict-aliasing -fPIE
OPT := $(if $(filter 1,$(DEBUG)),-O0,-O2) -g
# gcc sees ghosts in instrumented code: these two warnings are for the plain build.
SANFLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -DTHAW_SANITIZER=1 -Wno-stringop-overread -Wno-maybe-uninitialized)
# Generated headers (bpf/), as a system folder: the warnings are for our own code.
BPF_INCLUDE := -isystem build/bpf
CPPFLAGS += -D_GNU_SOURCE -I. -I$(B)/gen $(BPF_INCLUDE)
CFLAGS_ALL := -std=gnu11 $(OPT) $(WARN_C) $(HARDEN) $(SANFLAGS) -MMD -MP $(CFLAGS)
LIBS := -luring -ljansson -lxxhash -lzstd -lpthread
DAEMON_LIBS := -lmicrohttpd -lsqlite3 -lwslay
# The binaries are static: they start faster, carry no loader into the jail, and run on a host with other libraries. A sanitizer can't be.
LINK_VMM := $(if $(SAN),-pie,-static-pie) -Wl,-z,relro,-z,now
SHIM_CFLAGS := -std=gnu11 -Os -g $(WARN_C) -fno-strict-aliasing -ffunction-sections -fdata-sections -fno-pie $(SANFLAGS) -MMD -MP

VERSION := $(shell sed -n 's/^## *//p' CHANGELOG.md 2>/dev/null | head -n 1)
CPPFLAGS += -DTHAW_VERSION='"$(VERSION)"'

LIB := $(B)/libvmm.a
LIB_OBJS := $(LIB_SRCS:%.c=$(B)/obj/%.o)
SHIM_OBJS := $(SHIM_SRCS:%.c=$(B)/shim-obj/%.o)
FILES_OBJS := $(FILES_SRCS:%.c=$(B)/shim-obj/%.o)
UNIT_BINS := $(UNIT_TESTS:%=$(B)/unit/%)

# --- all ---------------------------------------------------------------------------------------------------------

.PHONY: all
all: $(B)/thaw $(B)/thaw-vmm $(B)/thaw-shim $(B)/thaw-files $(B)/thawd

# Rebuilds everything when a flag or the compiler changes.
$(B)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(CPPFLAGS) $(CFLAGS_ALL) $(LINK_VMM) $(SHIM_CFLAGS)' | cmp -s - $@ || \
		echo '$(CC) $(CPPFLAGS) $(CFLAGS_ALL) $(LINK_VMM) $(SHIM_CFLAGS)' >$@
.PHONY: FORCE
FORCE:

# Asked for once, with a clear error a library.
$(B)/probe: | $(B)/flags
	@for lib in liburing jansson libxxhash libzstd libmicrohttpd sqlite3; do $(PKG_CONFIG) --exists $$lib || \
		{ echo "error: library $$lib not found by $(PKG_CONFIG); run: make deps" >&2; exit 1; }; done
	@echo '#include <wslay/wslay.h>' | $(CC) -E -o /dev/null - 2>/dev/null || \
		{ echo "error: library wslay not found by $(CC); run: make deps" >&2; exit 1; }
	@touch $@

$(B)/obj/%.o: %.c $(B)/flags $(B)/probe
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS_ALL) -c -o $@ $<

# --- BPF -------------------------------------------------------------------------------------------------------------

BPF_SKELS := build/bpf/hot_fault.lskel.h

build/bpf/%.bpf.o: bpf/%.bpf.c
	$(call say,BPF,$<)
	@mkdir -p $(@D)
	@{ command -v $(CLANG) && command -v $(LLVM_STRIP); } >/dev/null || \
		{ echo "error: $(CLANG) or $(LLVM_STRIP) not found; run: make deps" >&2; exit 1; }
	$(Q)$(CLANG) -target bpf -mcpu=v3 -O2 -g -Wall -Wextra -Werror -I/usr/include/x86_64-linux-gnu -c -o $@ $<
	$(Q)$(LLVM_STRIP) -g $@

build/bpf/%.lskel.h: build/bpf/%.bpf.o
	$(call say,SKEL,$@)
	@[ -n "$(BPFTOOL)" ] || { echo "error: bpftool not found; run: make deps" >&2; exit 1; }
	$(Q)$(BPFTOOL) gen skeleton -L $< name $* >$@

$(B)/obj/vmm/cli/hot_bpf.o $(F)/obj/vmm/cli/hot_bpf.o: $(BPF_SKELS)

$(LIB): $(LIB_OBJS)
	$(call say,AR,$@)
	@rm -f $@
	$(Q)$(AR) rcs $@ $^

$(B)/thaw-vmm: $(B)/obj/vmm/main.o $(LIB)
	$(call say,LINK,$@)
	$(Q)$(CC) $(CFLAGS_ALL) $(LINK_VMM) -o $@ $^ $(LIBS)

$(B)/thaw: $(B)/obj/vmm/cli/main.o $(LIB)
	$(call say,LINK,$@)
	$(Q)$(CC) $(CFLAGS_ALL) $(LINK_VMM) -o $@ $^ $(LIBS)

# --- thawd -----------------------------------------------------------------------------------------------------------

DAEMON_LIB := $(B)/libthawd.a
DAEMON_OBJS := $(DAEMON_SRCS:%.c=$(B)/obj/%.o) $(B)/obj/openapi.o

$(B)/gen/openapi.c: docs/openapi.yaml scripts/openapi-c CHANGELOG.md
	$(call say,GEN,$@)
	@mkdir -p $(@D)
	$(Q)scripts/openapi-c '$(VERSION)' $< >$@

$(B)/obj/openapi.o: $(B)/gen/openapi.c $(B)/flags
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS_ALL) -c -o $@ $<

$(DAEMON_LIB): $(DAEMON_OBJS)
	$(call say,AR,$@)
	@rm -f $@
	$(Q)$(AR) rcs $@ $^

# Not static: its libraries get their security updates from the distribution.
$(B)/thawd: $(B)/obj/vmm/daemon/main.o $(DAEMON_LIB) $(LIB)
	$(call say,LINK,$@)
	$(Q)$(CC) $(CFLAGS_ALL) -pie -Wl,-z,relro,-z,now -o $@ $^ $(DAEMON_LIBS) $(LIBS)

$(B)/shim-obj/%.o: %.c $(B)/flags
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) -D_GNU_SOURCE -I. $(SHIM_CFLAGS) -c -o $@ $<

$(B)/thaw-shim: $(SHIM_OBJS)
	$(call say,LINK,$@)
	$(Q)$(CC) $(if $(SAN),$(SANFLAGS),-static) -no-pie -Wl,--gc-sections -o $@ $^

# libacl is libarchive's. Without debug information: it lies in every guest's memory.
$(B)/thaw-files: $(FILES_OBJS)
	$(call say,LINK,$@)
	@{ $(PKG_CONFIG) --exists libarchive && [ -e "$$($(CC) -print-file-name=libacl.a)" ]; } || \
		{ echo "error: static libarchive or libacl not found; run: make deps" >&2; exit 1; }
	$(Q)$(CC) $(if $(SAN),$(SANFLAGS),-static -s) -no-pie -Wl,--gc-sections -o $@ $^ -larchive -lacl

# --- guest ---------------------------------------------------------------------------------------------------------

G := build/guest

.PHONY: guest
guest: $(G)/initramfs.cpio

# A second guest for the lab: the same with numpy and Node.js in its root.
GL := build/guest-lab

.PHONY: guest-lab
guest-lab: $(GL)/initramfs.cpio

$(GL)/stamp: FORCE
	$(Q)guest/image/build --image debian-lab --link $(GL) >/dev/null

$(GL)/initramfs.cpio: $(GL)/stamp $(B)/thaw-shim $(B)/thaw-files guest/image/mkinitramfs
	$(call say,INITRAMFS,$@)
	$(Q)guest/image/mkinitramfs $(B)/thaw-shim $(B)/thaw-files $(GL)/modules $@

# Cached by digest, so it is asked for every time; the stamp changes when the answer does.
$(G)/stamp: FORCE
	$(Q)guest/image/build --link $(G) >/dev/null

# Our own programs change often, thus they are no part of what is cached.
$(G)/initramfs.cpio: $(G)/stamp $(B)/thaw-shim $(B)/thaw-files guest/image/mkinitramfs
	$(call say,INITRAMFS,$@)
	$(Q)guest/image/mkinitramfs $(B)/thaw-shim $(B)/thaw-files $(G)/modules $@

# --- deps, demo ----------------------------------------------------------------------------------------------------

.PHONY: deps demo
deps:
	$(Q)scripts/deps

# The main job: a command in a sandbox restored from a pre-warmed snapshot, where guests can run.
demo: deps
	$(Q)$(MAKE) --no-print-directory all guest
	$(Q)tests/host/run scripts/demo

# --- tests ---------------------------------------------------------------------------------------------------------

$(DAEMON_TESTS:%=$(B)/unit/%): $(B)/unit/%: tests/unit/%.c $(DAEMON_LIB) $(LIB) $(B)/flags
	$(call say,UNIT,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS_ALL) -pie -o $@ $< $(UNIT_EXTRA_$*) $(DAEMON_LIB) $(LIB) $(DAEMON_LIBS) $(LIBS)

$(B)/unit/%: tests/unit/%.c $(LIB) $(B)/flags
	$(call say,UNIT,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS_ALL) -pie -o $@ $< $(UNIT_EXTRA_$*) $(LIB) $(LIBS)

# thawd's HTTP layer with handlers for its tests.
$(B)/http-rig: $(B)/obj/tests/native/http_rig.o $(DAEMON_LIB) $(LIB)
	$(call say,LINK,$@)
	$(Q)$(CC) $(CFLAGS_ALL) -pie -o $@ $^ $(DAEMON_LIBS) $(LIBS)

.PHONY: unit-bins test test-unit test-vm
unit-bins: $(UNIT_BINS) $(B)/http-rig build/hostile/sleeper.elf

# Everything: static checks, unit tests plain and sanitized, short fuzz runs, the product in the test host. Ends with one count.
test: deps
	$(Q)tests/run-all

test-unit:
	$(Q)tests/run-all unit

test-vm:
	$(Q)tests/run-all vm

# Hostile guests: freestanding programs that thaw-vmm boots as its kernel.
HOSTILE := sleeper chain_loop chain_long addr_past ring_bad double_fetch regs doorbell reset_inflight blk_range vsock_credit vsock_flood ports \
	triple_fault console_flood
HOSTILE_CFLAGS := -std=gnu11 -O1 -g $(WARN_C) -Wno-error=shadow -ffreestanding -fno-stack-protector -fno-pie -mno-red-zone \
	-mgeneral-regs-only -fcf-protection=none -fno-strict-aliasing -MMD -MP

build/hostile/%.o: tests/hostile/%.c
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(HOSTILE_CFLAGS) -c -o $@ $<

build/hostile/%.o: tests/hostile/%.S
	@mkdir -p $(@D)
	$(Q)$(CC) -c -o $@ $<

build/hostile/%.elf: build/hostile/%.o build/hostile/start.o build/hostile/lib.o tests/hostile/guest.ld
	$(Q)$(CC) -nostdlib -static -no-pie -Wl,--build-id=none -T tests/hostile/guest.ld -o $@ $(filter %.o,$^)

# What the tests in the test host need beyond `all guest`.
.PHONY: vm-test-bins
vm-test-bins: $(HOSTILE:%=build/hostile/%.elf) $(B)/unit/test_hot_bpf $(B)/unit/test_jail

# Ten thousand restores and what belongs to them: hours in the emulated test host. SOAK='--count 1000 --kills 0' does less.
.PHONY: soak
soak:
	$(Q)$(MAKE) --no-print-directory all guest
	$(Q)tests/host/run -- python3 tests/vm/soak.py $(SOAK)

# --- fuzz ----------------------------------------------------------------------------------------------------------

FUZZ_FLAGS := -std=gnu11 -O1 -g $(WARN_C) -fno-strict-aliasing -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address,undefined \
	-fno-sanitize-recover=all -DTHAW_SANITIZER=1 -DTHAW_FUZZ=1 -MMD -MP
FUZZ_OBJS := $(LIB_SRCS:%.c=$(F)/obj/%.o)
FUZZ_BINS := $(FUZZERS:%=$(F)/%)

$(F)/obj/%.o: %.c
	$(call say,FUZZCC,$<)
	@mkdir -p $(@D)
	$(Q)$(CLANG) -D_GNU_SOURCE -I. $(BPF_INCLUDE) -DTHAW_VERSION='"$(VERSION)"' $(FUZZ_FLAGS) -c -o $@ $<

$(F)/libvmm.a: $(FUZZ_OBJS)
	@rm -f $@
	$(Q)$(AR) rcs $@ $^

$(F)/obj/openapi.o: $(B)/gen/openapi.c
	@mkdir -p $(@D)
	$(Q)$(CLANG) -D_GNU_SOURCE -I. $(FUZZ_FLAGS) -c -o $@ $<

$(F)/libthawd.a: $(DAEMON_SRCS:%.c=$(F)/obj/%.o) $(F)/obj/openapi.o
	@rm -f $@
	$(Q)$(AR) rcs $@ $^

$(DAEMON_FUZZERS:%=$(F)/%): $(F)/%: tests/fuzz/%.c $(F)/libthawd.a $(F)/libvmm.a
	$(call say,FUZZ,$@)
	$(Q)$(CLANG) -D_GNU_SOURCE -I. $(FUZZ_FLAGS) -fsanitize=fuzzer,address,undefined -o $@ $< $(FUZZ_EXTRA_$*) $(F)/libthawd.a $(F)/libvmm.a \
		$(DAEMON_LIBS) $(LIBS)

$(F)/%: tests/fuzz/%.c $(F)/libvmm.a
	$(call say,FUZZ,$@)
	$(Q)$(CLANG) -D_GNU_SOURCE -I. $(FUZZ_FLAGS) -fsanitize=fuzzer,address,undefined -o $@ $< $(FUZZ_EXTRA_$*) $(F)/libvmm.a $(LIBS)

.PHONY: fuzz fuzz-bins
fuzz-bins: $(FUZZ_BINS)

fuzz:
	$(Q)tests/run-all fuzz

# --- static checks --------------------------------------------------------------------------------------------------

.PHONY: lint format compile_commands.json
lint:
	$(Q)tests/run-all lint

format:
	$(Q)git ls-files -co --exclude-standard '*.c' '*.h' '*.cc' | xargs "$$(scripts/deps --lint-venv)/bin/clang-format" -i

compile_commands.json: $(BPF_SKELS)
	$(Q)scripts/compile-commands $(CC) '$(subst ','\'',$(CPPFLAGS) $(filter-out -MMD -MP,$(CFLAGS_ALL)))' $(LIB_SRCS) vmm/main.c vmm/cli/main.c \
		$(DAEMON_SRCS) vmm/daemon/main.c $(SHIM_SRCS) $(FILES_SRCS) $(UNIT_TESTS:%=tests/unit/%.c) >$@.tmp
	@mv $@.tmp $@

# Prints a make variable; scripts ask for source lists this way.
print-%:
	@echo '$($*)'

# --- bench ---------------------------------------------------------------------------------------------------------

BENCH_OBJS := $(B)/obj/bench/phases.o $(B)/obj/bench/made.o $(B)/obj/bench/page_cost.o

$(B)/bench-%: bench/%.cc $(BENCH_OBJS) $(LIB)
	$(call say,BENCH,$@)
	$(Q)$(CXX) -std=gnu++17 -O2 -g $(WARN) -I. -fPIE -pie -o $@ $< $(BENCH_OBJS) $(LIB) -lbenchmark $(LIBS)

# The hot set's fetch alone, for the lab.
$(B)/bench-fetch: $(B)/obj/bench/fetch.o $(LIB)
	$(call say,BENCH,$@)
	$(Q)$(CC) $(CFLAGS_ALL) $(LINK_VMM) -o $@ $^ $(LIBS)

.PHONY: bench lab lab-quick
bench:
	$(Q)$(MAKE) --no-print-directory all guest
	$(Q)bench/run

# Every way of starting, measured in one run: hours; lab-quick: what the targets need, some 10 minutes.
lab:
	$(Q)bench/lab/run --plan full

lab-quick:
	$(Q)bench/lab/run --plan quick

# --- install -------------------------------------------------------------------------------------------------------

MANS := $(wildcard docs/man/*.[1-8])
# "share/man/man1/thaw.1", and so on.
MAN_PATHS := $(foreach man,$(MANS),share/man/man$(patsubst .%,%,$(suffix $(man)))/$(notdir $(man)))
# Settings and units are looked for in one place, wherever the rest is.
UNITDIR    ?= $(PREFIX)/lib/systemd/system
INSTALLED := bin/thaw sbin/thawd libexec/thaw/thaw-vmm lib/sysusers.d/thaw.conf lib/tmpfiles.d/thaw.conf \
	share/bash-completion/completions/thaw share/zsh/vendor-completions/_thaw share/fish/vendor_completions.d/thaw.fish $(MAN_PATHS)

# Not of the packages: what users may have changed stays.
.PHONY: install uninstall deb
install: all guest
	install -d $(addprefix $(DESTDIR)$(PREFIX)/,$(sort $(dir $(INSTALLED))) share/thaw/guest share/thaw/recipes) \
		$(DESTDIR)$(UNITDIR) $(DESTDIR)/etc/thaw
	install -m 0755 $(B)/thaw $(DESTDIR)$(PREFIX)/bin/
	install -m 0755 $(B)/thawd $(DESTDIR)$(PREFIX)/sbin/
	install -m 0755 $(B)/thaw-vmm $(DESTDIR)$(PREFIX)/libexec/thaw/
	install -m 0644 build/guest/vmlinux build/guest/initramfs.cpio build/guest/root.erofs build/guest/guest.json \
		$(DESTDIR)$(PREFIX)/share/thaw/guest/
	install -m 0644 $(wildcard snapshots/recipes/*) $(DESTDIR)$(PREFIX)/share/thaw/recipes/
	install -m 0644 docs/openapi.yaml $(DESTDIR)$(PREFIX)/share/thaw/
	$(foreach man,$(MANS),install -m 0644 $(man) $(DESTDIR)$(PREFIX)/share/man/man$(patsubst .%,%,$(suffix $(man)))/ &&) true
	install -m 0644 completions/thaw.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/thaw
	install -m 0644 completions/_thaw $(DESTDIR)$(PREFIX)/share/zsh/vendor-completions/_thaw
	install -m 0644 completions/thaw.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/thaw.fish
	install -m 0644 packaging/sysusers.conf $(DESTDIR)$(PREFIX)/lib/sysusers.d/thaw.conf
	install -m 0644 packaging/tmpfiles.conf $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/thaw.conf
	sed 's|@SBINDIR@|$(PREFIX)/sbin|' packaging/thawd.service.in >$(DESTDIR)$(UNITDIR)/thawd.service
	[ -e $(DESTDIR)/etc/thaw/thaw.conf ] || install -m 0644 packaging/thaw.conf $(DESTDIR)/etc/thaw/

uninstall:
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/,$(INSTALLED)) $(DESTDIR)$(UNITDIR)/thawd.service
	rm -rf $(DESTDIR)$(PREFIX)/share/thaw $(DESTDIR)$(PREFIX)/libexec/thaw

# build/deb/thaw_VERSION_amd64.deb and python3-thaw_VERSION_all.deb; their paths are printed.
deb: all guest
	rm -rf build/deb
	$(Q)$(MAKE) --no-print-directory -s install DESTDIR=build/deb/root PREFIX=/usr
	$(Q)packaging/mkdeb build/deb/root $(VERSION) build/deb
	$(Q)rm -rf build/deb/root

.PHONY: clean distclean help
clean:
	rm -rf build compile_commands.json

# Also the cached images, and the test host if it runs.
distclean: clean
	-tests/host/stop
	rm -rf "$${XDG_CACHE_HOME:-$$HOME/.cache}/thaw"

help:
	@echo 'thaw: make targets'
	@echo '  all        thaw, thawd, thaw-vmm, thaw-shim, thaw-files in build/<config>/'
	@echo '  guest      guest kernel, root image and initramfs in build/guest/ (cached)'
	@echo '  deps       install what is missing by apt (root)'
	@echo '  demo       deps, build, template, a command in a restored sandbox, clocks printed'
	@echo '  test       deps and every check; ends with one count'
	@echo '  test-unit  unit tests, plain and sanitized      test-vm  the product in the test host'
	@echo '  soak       10,000 restores, 1,000 clones, generations, kills; SOAK=--help tells its options'
	@echo '  fuzz       each fuzzer for FUZZ_SECONDS=$(FUZZ_SECONDS)       lint     static checks'
	@echo '  bench      benchmarks, JSON in build/bench/     format   clang-format in place'
	@echo '  lab        the restore lab, all of it: build/lab/report.md; hours'
	@echo '  lab-quick  what the targets need of it, some 10 minutes'
	@echo '  compile_commands.json  install  uninstall  deb  clean  distclean  help'
	@echo 'knobs: V=1 DEBUG=1 WERROR=0 SAN=address,undefined CC= CXX= CLANG= PREFIX=$(PREFIX) DESTDIR='

-include $(LIB_OBJS:.o=.d) $(DAEMON_OBJS:.o=.d) $(DAEMON_SRCS:%.c=$(F)/obj/%.d) $(B)/obj/vmm/daemon/main.d $(B)/obj/tests/native/http_rig.d $(SHIM_OBJS:.o=.d) $(FILES_OBJS:.o=.d) $(B)/obj/vmm/main.d $(B)/obj/vmm/cli/main.d $(UNIT_BINS:=.d) $(FUZZ_OBJS:.o=.d) $(FUZZ_BINS:=.d) $(HOSTILE:%=build/hostile/%.d) build/hostile/lib.d \
	$(BENCH_OBJS:.o=.d) $(B)/obj/bench/fetch.d
