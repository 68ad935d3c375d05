// Package usage reads from Linux's /proc what a process uses.
package usage

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// SkipWithout skips the benchmark where there is no /proc.
func SkipWithout(b *testing.B) {
	b.Helper()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		b.Skip("needs Linux's /proc")
	}
}

// CPUTime is the user and system time of a process, from /proc/<pid>/stat, proc_pid_stat(5).
func CPUTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	// Fields are counted from behind the name, which is in brackets and can hold anything: the third is
	// the first, the 14th and 15th are the times, in ticks of which every Linux has 100 a second.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100
}

// ResidentMemory is in bytes, from /proc/<pid>/status.
func ResidentMemory(b *testing.B, pid int) int64 {
	b.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "VmRSS:" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			return kib << 10
		}
	}
	b.Fatalf("no VmRSS in /proc/%d/status", pid)
	return 0
}

// LoadAverage is that of the last minute, from /proc/loadavg: a run beside others is not worth much.
func LoadAverage(b *testing.B) string {
	b.Helper()
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		b.Fatal(err)
	}
	first, _, _ := strings.Cut(string(data), " ")
	return first
}
