//go:build ignore

// Stand-in for libnvrtc.so: a compiler of CUDA C++ for the CPU. It compiles the program
// with g++ (or CXX) and cuda_host.h, which is in this library's folder. The "cubin" is a
// shared object that the stand-in for the driver loads. See standin.go.

#define _GNU_SOURCE
#include "standin.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	SUCCESS = 0,
	INVALID_INPUT = 3,
	INVALID_PROGRAM = 4,
	INVALID_OPTION = 5,
	COMPILATION = 6,
	INTERNAL_ERROR = 11,
};

extern char **environ;

typedef struct {
	char folder[64]; // of the source, its headers and the output
	char *source, *log, *image;
	size_t bytes; // of image
} program;

int nvrtcVersion(int *major, int *minor) {
	*major = 13;
	*minor = 99; // not a version of NVIDIA's, so caches do not mix the outputs
	return SUCCESS;
}

// Supported compute capabilities, times 10.
static const int archs[] = {80, 89, 90, 100, 120};

int nvrtcGetNumSupportedArchs(int *count) {
	const long newest = setting("STANDIN_NVRTC", 120);
	*count = 0;
	for (size_t i = 0; i < sizeof archs / sizeof archs[0] && archs[i] <= newest; i++)
		++*count;
	return SUCCESS;
}

int nvrtcGetSupportedArchs(int *list) {
	int count;
	nvrtcGetNumSupportedArchs(&count);
	memcpy(list, archs, count * sizeof *list);
	return SUCCESS;
}

const char *nvrtcGetErrorString(int status) {
	switch (status) {
	case INVALID_OPTION: return "NVRTC_ERROR_INVALID_OPTION";
	case COMPILATION: return "NVRTC_ERROR_COMPILATION";
	}
	return "stand-in error";
}

static int save(const char *folder, const char *name, const char *text, const char *tail) {
	char path[512];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	FILE *f = fopen(path, "w");
	if (!f)
		return INTERNAL_ERROR;
	fprintf(f, "%s%s", text, tail);
	return fclose(f) ? INTERNAL_ERROR : SUCCESS;
}

static char *read_file(const char *folder, const char *name, size_t *bytes) {
	char path[512];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	FILE *f = fopen(path, "r");
	if (!f)
		return NULL;
	struct stat s;
	fstat(fileno(f), &s);
	char *text = calloc(s.st_size + 1, 1);
	*bytes = fread(text, 1, s.st_size, f);
	fclose(f);
	return text;
}

int nvrtcCreateProgram(program **out, const char *source, const char *name, int headers,
		       const char *const *texts, const char *const *names) {
	program *p = calloc(1, sizeof *p);
	strcpy(p->folder, "/tmp/standin-nvrtc-XXXXXX");
	if (!source || !mkdtemp(p->folder)) {
		free(p);
		return INVALID_INPUT;
	}
	p->source = strdup(source);
	for (int i = 0; i < headers; i++)
		if (strchr(names[i], '/') || save(p->folder, names[i], texts[i], ""))
			return INVALID_INPUT;
	*out = p;
	return SUCCESS;
}

// sizes returns a line for each KERNEL(name, Args, ...) of the source that defines the size
// of its parameter for the driver.
static char *sizes(const char *source) {
	char *tail = NULL, name[128], type[128];
	size_t length;
	FILE *f = open_memstream(&tail, &length);
	fputc('\n', f);
	for (const char *at = source; (at = strstr(at, "\nKERNEL("));)
		if (sscanf(++at, "KERNEL(%127[^, ], %127[^, ],", name, type) == 2)
			fprintf(f, "extern \"C\" { extern const unsigned long standin_parameter_%s; "
				   "const unsigned long standin_parameter_%s = sizeof(%s); }\n",
				name, name, type);
	fclose(f);
	return tail;
}

static int run(char **arguments, const char *folder) {
	char log[128];
	snprintf(log, sizeof log, "%s/log", folder);
	posix_spawn_file_actions_t files;
	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_addopen(&files, 1, log, O_WRONLY | O_CREAT | O_TRUNC, 0666);
	posix_spawn_file_actions_adddup2(&files, 1, 2);
	pid_t child;
	int status = posix_spawnp(&child, arguments[0], &files, NULL, arguments, environ);
	posix_spawn_file_actions_destroy(&files);
	if (status || waitpid(child, &status, 0) != child)
		return INTERNAL_ERROR;
	return status ? COMPILATION : SUCCESS;
}

int nvrtcCompileProgram(program *p, int options, const char *const *option) {
	if (!p)
		return INVALID_PROGRAM;
	char arch[16] = "", source[128], object[128], include[128], host[512];
	char *arguments[64] = {getenv("CXX") ? getenv("CXX") : "g++"};
	int n = 1;
	// No contraction: a * b + c rounds twice unless the program calls fma.
	static char *const flags[] = {"-O1", "-fPIC", "-shared", "-fno-gnu-unique", "-fno-strict-aliasing", "-ffp-contract=off",
				     "-Wno-unknown-pragmas", "-x", "c++"};
	for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
		arguments[n++] = flags[i];
#ifdef __x86_64__
	if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2"))
		arguments[n++] = "-mfma", arguments[n++] = "-mavx2"; // without these, each fma is a call
#endif
	for (int i = 0; i < options; i++) {
		if (sscanf(option[i], "--gpu-architecture=%15s", arch) == 1 || !strcmp(option[i], "--fmad=false"))
			continue;
		if ((strncmp(option[i], "--std=c++", 9) && strncmp(option[i], "-D", 2)) || n > 56) {
			p->log = strdup(option[i]);
			return INVALID_OPTION;
		}
		arguments[n++] = (char *)option[i];
	}
	if (strncmp(arch, "sm_", 3)) { // NVRTC's default is PTX, which octet does not use
		p->log = strdup("--gpu-architecture=sm_... is missing");
		return INVALID_OPTION;
	}
	Dl_info self;
	if (!dladdr((void *)nvrtcVersion, &self))
		return INTERNAL_ERROR;
	snprintf(host, sizeof host, "%s", self.dli_fname);
	*strrchr(host, '/') = 0;
	strcat(host, "/cuda_host.h");
	snprintf(include, sizeof include, "-I%s", p->folder);
	snprintf(source, sizeof source, "%s/source.cu", p->folder);
	snprintf(object, sizeof object, "%s/module.so", p->folder);
	char *const files[] = {"-include", host, include, "-o", object, source};
	for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
		arguments[n++] = files[i];

	char *tail = sizes(p->source);
	int status = save(p->folder, "source.cu", p->source, tail);
	free(tail);
	if (!status)
		status = run(arguments, p->folder);
	size_t ignored;
	p->log = read_file(p->folder, "log", &ignored);
	if (status)
		return status;

	standin_image head = {.magic = STANDIN_MAGIC};
	snprintf(head.arch, sizeof head.arch, "%s", arch);
	char *code = read_file(p->folder, "module.so", &head.bytes);
	if (!code)
		return INTERNAL_ERROR;
	p->bytes = sizeof head + head.bytes;
	p->image = malloc(p->bytes);
	memcpy(p->image, &head, sizeof head);
	memcpy(p->image + sizeof head, code, head.bytes);
	free(code);
	return SUCCESS;
}

int nvrtcGetProgramLogSize(program *p, size_t *bytes) {
	*bytes = (p->log ? strlen(p->log) : 0) + 1;
	return SUCCESS;
}

int nvrtcGetProgramLog(program *p, char *log) {
	strcpy(log, p->log ? p->log : "");
	return SUCCESS;
}

int nvrtcGetCUBINSize(program *p, size_t *bytes) {
	*bytes = p->bytes;
	return p->image ? SUCCESS : INVALID_PROGRAM;
}

int nvrtcGetCUBIN(program *p, char *cubin) {
	if (!p->image)
		return INVALID_PROGRAM;
	memcpy(cubin, p->image, p->bytes);
	return SUCCESS;
}

int nvrtcDestroyProgram(program **at) {
	program *p = *at;
	if (!p)
		return INVALID_PROGRAM;
	char command[128];
	snprintf(command, sizeof command, "%s", p->folder);
	char *remove[] = {"rm", "-r", command, NULL};
	pid_t child;
	if (!posix_spawnp(&child, "rm", NULL, NULL, remove, environ))
		waitpid(child, NULL, 0);
	free(p->source);
	free(p->log);
	free(p->image);
	free(p);
	*at = NULL;
	return SUCCESS;
}
