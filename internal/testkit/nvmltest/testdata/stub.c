/* A stub of NVIDIA's management library, for tests on machines without such an
 * accelerator. It follows the documented API and was not compared with a real device.
 * Its environment selects what it simulates:
 *
 *   STUB_NVML=noinit    nvmlInit fails: the driver is not loaded
 *   STUB_NVML=slow      each reading takes half a second
 *   STUB_NVML=die       the process ends at the third reading
 *   STUB_NVML_LOST=FILE device 0 is lost while the file exists
 *   STUB_NVML_HOLD=FILE each reading waits until the file is removed
 *
 * Device 0 has an energy counter at 100 W, device 1 is too old for one and
 * draws 40 W, device 2 has neither.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int is(const char *what) {
	const char *s = getenv("STUB_NVML");
	return s && strcmp(s, what) == 0;
}

static int readings;

static void reading(void) {
	const char *hold = getenv("STUB_NVML_HOLD");

	while (hold && access(hold, F_OK) == 0)
		usleep(1000);
	if (is("slow"))
		usleep(500 * 1000);
	if (is("die") && ++readings > 5) {
		fprintf(stderr, "the stub dies\n");
		_exit(3);
	}
}

int nvmlInit_v2(void) { return is("noinit") ? 9 : 0; }
int nvmlShutdown(void) { return 0; }

int nvmlDeviceGetCount_v2(unsigned int *n) {
	*n = 3;
	return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int i, void **device) {
	*device = (void *)(unsigned long)(i + 1);
	return 0;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int length) {
	snprintf(uuid, length, "GPU-0000000%lu-1111-2222-3333-444455556666", (unsigned long)device);
	return 0;
}

int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mJ) {
	struct timespec t;
	const char *lost = getenv("STUB_NVML_LOST");
	if ((unsigned long)device != 1)
		return 3;
	reading();
	if (lost && access(lost, F_OK) == 0)
		return 15;
	clock_gettime(CLOCK_BOOTTIME, &t);
	*mJ = (t.tv_sec * 1000ull + t.tv_nsec / 1000000) * 100;
	return 0;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned int *mW) {
	if ((unsigned long)device != 2)
		return 3;
	reading();
	*mW = 40000;
	return 0;
}

const char *nvmlErrorString(int result) {
	switch (result) {
	case 3:
		return "Not Supported";
	case 9:
		return "Driver Not Loaded";
	case 15:
		return "GPU is lost";
	}
	return "Unknown Error";
}
