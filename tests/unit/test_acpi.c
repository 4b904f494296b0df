// SPDX-License-Identifier: Apache-2.0
// ACPI tables: pointers, lengths, checksums; the AML walked back; disassembled by iasl where there
// is one.
#include "vmm/kvm/acpi.h"

#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/test.h"
#include "vmm/kvm/layout.h"

static u8 buf[ACPI_TABLES_BYTES];

static u64 le(const u8 *p, unsigned int bytes)
{
	u64 value = 0;

	memcpy(&value, p, bytes);
	return value;
}

static u8 sum(const u8 *p, size_t len)
{
	u8 s = 0;

	while (len--)
		s = (u8)(s + *p++);
	return s;
}

/** The table at guest address @gpa: in bounds, checksum 0, signature as wanted. */
static const u8 *table(u64 gpa, const char *signature, size_t used)
{
	const u8 *t = buf + (gpa - LAYOUT_ACPI_GPA);
	u64 len;

	CHECK(gpa >= LAYOUT_ACPI_GPA && gpa + 36 <= LAYOUT_ACPI_GPA + used);
	CHECK_EQ(gpa % 16, 0);
	CHECK(!memcmp(t, signature, 4));
	len = le(t + 4, 4);
	CHECK(len >= 36 && gpa + len <= LAYOUT_ACPI_GPA + used);
	CHECK_EQ(sum(t, len), 0);
	return t;
}

static const u8 *build(unsigned int nvcpus, u32 slots, const u8 **madt, const u8 **dsdt)
{
	struct acpi_config cfg = {.nvcpus = nvcpus, .virtio_slots = slots};
	size_t used;
	const u8 *xsdt, *fadt;

	memset(buf, 0xaa, sizeof(buf));
	used = acpi_build(buf, LAYOUT_ACPI_GPA, &cfg);
	CHECK(used > 36 && used <= sizeof(buf));
	CHECK(!memcmp(buf, "RSD PTR ", 8));
	CHECK_EQ(buf[15], 2);
	CHECK_EQ(le(buf + 20, 4), 36);
	CHECK_EQ(sum(buf, 20), 0);
	CHECK_EQ(sum(buf, 36), 0);
	xsdt = table(le(buf + 24, 8), "XSDT", used);
	CHECK_EQ(le(xsdt + 4, 4), 36 + 16);
	fadt = table(le(xsdt + 36, 8), "FACP", used);
	*madt = table(le(xsdt + 44, 8), "APIC", used);
	*dsdt = table(le(fadt + 140, 8), "DSDT", used);
	CHECK_EQ(le(fadt + 40, 4), le(fadt + 140, 8));
	return fadt;
}

static void test_fadt(void)
{
	const u8 *madt, *dsdt, *fadt = build(1, 0x1f, &madt, &dsdt);

	CHECK_EQ(le(fadt + 4, 4), 276);
	CHECK_EQ(fadt[8], 6);
	CHECK_EQ(le(fadt + 109, 2), 0x24); /* no VGA, no CMOS; the 8042 bit is clear */
	CHECK_EQ(le(fadt + 112, 4) & (1u << 20 | 1u << 10), 1u << 20 | 1u << 10);
	CHECK_EQ(fadt[116], 1);
	CHECK_EQ(le(fadt + 120, 8), LAYOUT_RESET_PORT);
	CHECK_EQ(fadt[128], 1);
	CHECK_EQ(fadt[244], 1);
	CHECK_EQ(le(fadt + 248, 8), LAYOUT_SLEEP_PORT);
}

static void test_madt(void)
{
	const u8 *madt, *dsdt;

	for (unsigned int n = 1; n <= VM_VCPUS_MAX; n++) {
		build(n, 0x1f, &madt, &dsdt);
		CHECK_EQ(le(madt + 4, 4), 44 + 8 * n + 12);
		CHECK_EQ(le(madt + 36, 4), LAYOUT_LAPIC_GPA);
		for (unsigned int i = 0; i < n; i++) {
			const u8 golden[8] = {0, 8, (u8)i, (u8)i, 1, 0, 0, 0};

			CHECK(!memcmp(madt + 44 + 8 * i, golden, 8));
		}
		CHECK_EQ(madt[44 + 8 * n], 1);
		CHECK_EQ(le(madt + 44 + 8 * n + 4, 4), LAYOUT_IOAPIC_GPA);
		CHECK_EQ(le(madt + 44 + 8 * n + 8, 4), 0);
	}
}

struct aml {
	const u8 *p, *end;
};

static u64 aml_length(struct aml *aml, const u8 **inner_end)
{
	const u8 *start = aml->p;
	unsigned int more = *aml->p >> 6;
	u64 len = more ? *aml->p & 0xf : *aml->p & 0x3f;

	CHECK(aml->p + more < aml->end);
	for (unsigned int i = 0; i < more; i++)
		len |= (u64)aml->p[1 + i] << (4 + 8 * i);
	aml->p += 1 + more;
	*inner_end = start + len;
	CHECK(*inner_end > aml->p && *inner_end <= aml->end);
	return len;
}

static u64 aml_int(struct aml *aml)
{
	u64 value;

	switch (*aml->p++) {
	case 0x00:
		return 0;
	case 0x0a:
		value = le(aml->p, 1);
		aml->p += 1;
		return value;
	case 0x0c:
		value = le(aml->p, 4);
		aml->p += 4;
		return value;
	default:
		CHECK(!"an integer");
		return 0;
	}
}

/** Finds Name(@name, ...) directly in a device body. Return: what follows the name. */
static struct aml aml_find(struct aml body, const char *name)
{
	for (; body.p + 5 < body.end; body.p++) {
		if (body.p[0] == 0x08 && !memcmp(body.p + 1, name, 4)) {
			body.p += 5;
			return body;
		}
	}
	CHECK(!"the name is there");
	return body;
}

static void check_string(struct aml body, const char *name, const char *text)
{
	struct aml at = aml_find(body, name);

	CHECK_EQ(*at.p, 0x0d);
	CHECK_STR((const char *)at.p + 1, text);
}

/** A _CRS as wanted: memory window (0: none) and GSI (-1: none). */
static void check_crs(struct aml body, u64 mem_gpa, u64 mem_bytes, int gsi)
{
	struct aml at = aml_find(body, "_CRS");
	const u8 *end;
	u64 size;

	CHECK_EQ(*at.p++, 0x11);
	aml_length(&at, &end);
	size = aml_int(&at);
	CHECK_EQ(end - at.p, size);
	if (mem_bytes) {
		const u8 head[4] = {0x86, 9, 0, 1};

		CHECK(!memcmp(at.p, head, 4));
		CHECK_EQ(le(at.p + 4, 4), mem_gpa);
		CHECK_EQ(le(at.p + 8, 4), mem_bytes);
		at.p += 12;
	}
	if (gsi >= 0) {
		const u8 head[5] = {0x89, 6, 0, 3, 1};

		CHECK(!memcmp(at.p, head, 5));
		CHECK_EQ(le(at.p + 5, 4), gsi);
		at.p += 9;
	}
	CHECK_EQ(at.p[0], 0x79);
	CHECK(at.p + 2 == end);
}

static void check_device(const char *name, struct aml body)
{
	if (name[0] == 'V' && name[1] == '0') {
		unsigned int slot = (unsigned int)(name[3] - '0');
		struct aml uid = aml_find(body, "_UID");

		check_string(body, "_HID", "LNRO0005");
		CHECK_EQ(aml_int(&uid), slot);
		check_crs(body, 0xd0010000 + 0x1000 * slot, 0x1000, 16 + (int)slot);
	} else if (!memcmp(name, "THAW", 4)) {
		check_string(body, "_HID", "THAW0001");
		check_crs(body, 0xd0000000, 0x10000, -1);
	} else if (!memcmp(name, "VGEN", 4)) {
		struct aml addr = aml_find(body, "ADDR");
		const u8 *end;

		check_string(body, "_CID", "VM_Gen_Counter");
		CHECK_EQ(*addr.p++, 0x12);
		aml_length(&addr, &end);
		CHECK_EQ(*addr.p++, 2);
		CHECK_EQ(aml_int(&addr), 0xd0001800);
		CHECK_EQ(aml_int(&addr), 0);
		CHECK(addr.p == end);
	} else {
		CHECK(!memcmp(name, "GED0", 4));
		check_string(body, "_HID", "ACPI0013");
		check_crs(body, 0, 0, 9);
	}
}

static void check_dsdt(const u8 *dsdt, unsigned int want_virtio)
{
	struct aml all = {.p = dsdt + 36, .end = dsdt + le(dsdt + 4, 4)}, scope;
	unsigned int virtio = 0, devices = 0;
	const u8 *end;

	CHECK_EQ(*all.p++, 0x10);
	aml_length(&all, &end);
	scope = (struct aml){.p = all.p, .end = end};
	CHECK(!memcmp(scope.p, "\\_SB_", 5));
	for (scope.p += 5; scope.p < scope.end; devices++) {
		struct aml body;

		CHECK(scope.p[0] == 0x5b && scope.p[1] == 0x82);
		scope.p += 2;
		aml_length(&scope, &end);
		body = (struct aml){.p = scope.p + 4, .end = end};
		virtio += scope.p[0] == 'V' && scope.p[1] == '0';
		check_device((const char *)scope.p, body);
		scope.p = end;
	}
	CHECK_EQ(virtio, want_virtio);
	CHECK_EQ(devices, virtio + 3);
	/* Behind the scope, \_S5 and nothing else. */
	CHECK(!memcmp(scope.p, "\x08\\_S5_\x12", 7));
	all.p = scope.p + 7;
	aml_length(&all, &end);
	CHECK_EQ(*all.p++, 4);
	CHECK_EQ(aml_int(&all), 5);
	CHECK(end == all.end);
}

static void test_dsdt(void)
{
	const u8 *madt, *dsdt;

	for (u32 slots = 0; slots < 32; slots++) {
		build(1, slots, &madt, &dsdt);
		check_dsdt(dsdt, (unsigned int)__builtin_popcount(slots));
	}
}

/** Runs iasl in @dir, its output in the file "log" there. Return: its exit status; 127: not
 * installed. */
static int iasl(const char *dir, bool disassemble, const char *file)
{
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (!pid) {
		if (chdir(dir) || !freopen("log", "a", stdout) || dup2(1, 2) < 0)
			_exit(126);
		if (disassemble)
			execlp("iasl", "iasl", "-p", "out", "-d", file, NULL);
		else
			execlp("iasl", "iasl", "-p", "out", file, NULL);
		_exit(127);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void show_and_remove(const char *dir, const char *name, bool show)
{
	char path[128], line[256];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "r");
	while (show && f && fgets(line, sizeof(line), f))
		fputs(line, stderr);
	if (f)
		fclose(f);
	unlink(path);
}

/** An independent opinion, where ACPICA's tools are installed: disassemble, and compile what came
 * out. */
static void test_iasl(void)
{
	static const char *const files[] = {"dsdt.aml", "out.dsl", "out.aml"};
	char dir[] = "/tmp/thaw-acpi-XXXXXX", path[128];
	const u8 *madt, *dsdt;
	int status;
	FILE *f;

	build(8, 0x1f, &madt, &dsdt);
	CHECK(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/dsdt.aml", dir);
	f = fopen(path, "wb");
	CHECK(f);
	CHECK_EQ(fwrite(dsdt, 1, le(dsdt + 4, 4), f), le(dsdt + 4, 4));
	CHECK_EQ(fclose(f), 0);
	status = iasl(dir, true, "dsdt.aml");
	if (!status)
		status = iasl(dir, false, "out.dsl");
	show_and_remove(dir, "log", status && status != 127);
	for (size_t i = 0; i < ARRAY_SIZE(files); i++)
		show_and_remove(dir, files[i], false);
	CHECK_EQ(rmdir(dir), 0);
	CHECK(status == 0 || status == 127);
}

TEST_MAIN({"FADT", test_fadt}, {"MADT", test_madt}, {"DSDT", test_dsdt}, {"iasl", test_iasl})
