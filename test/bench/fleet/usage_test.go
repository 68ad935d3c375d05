package fleet

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/dispatch-dev/dispatch/test/controlplane"
)

// usageOf is what one process used.
type usageOf struct {
	// start is from its start until it has seen all targets.
	start time.Duration
	// cpu is what it used within the window, memory what was resident at the end of it.
	cpu    time.Duration
	memory int64
	// renewals is how many there were within the window, of all targets.
	renewals int64
}

// steady measures the steady state, and says when that began.
func (u *usageOf) steady(b *testing.B, process *controlplane.Component, f fleet) time.Time {
	b.Helper()
	time.Sleep(settling)
	began := time.Now()
	before, renewals := cpuTime(b, process.PID()), f.renewals()
	time.Sleep(*window)
	u.cpu, u.renewals = cpuTime(b, process.PID())-before, f.renewals()-renewals
	u.memory = residentMemory(b, process.PID())
	return began
}

// cpuTime is the user and system time of a process, from /proc/<pid>/stat, proc_pid_stat(5).
func cpuTime(b *testing.B, pid int) time.Duration {
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

// residentMemory is in bytes, from /proc/<pid>/status.
func residentMemory(b *testing.B, pid int) int64 {
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

// loadAverage is that of the last minute, from /proc/loadavg: a run beside others is not worth much.
func loadAverage(b *testing.B) string {
	b.Helper()
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		b.Fatal(err)
	}
	first, _, _ := strings.Cut(string(data), " ")
	return first
}

// tables are printed when all is done.
var tables []string

// table is the result of one part.
type table struct {
	title   string
	targets int
	window  time.Duration

	baseline, manager                      usageOf
	startWrites, steadyWrites, deathWrites writes
	overshoot                              []time.Duration // sorted
	reopened                               time.Duration
	load                                   string
}

func (t *table) report(b *testing.B) {
	b.Helper()
	cpu := func(u usageOf) float64 { // milliseconds per target and minute
		return milliseconds(u.cpu) / float64(t.targets) / t.window.Minutes()
	}
	memory := func(u usageOf) float64 { // KiB per target
		return float64(u.memory) / float64(t.targets) / 1024
	}
	renewals := func(u usageOf) string {
		return fmt.Sprintf("%.1f", float64(u.renewals)/float64(t.targets)/t.window.Minutes())
	}
	p50, p99 := percentile(t.overshoot, 50), percentile(t.overshoot, 99)
	hub50, hub99 := percentile(t.deathWrites.took, 50), percentile(t.deathWrites.took, 99)
	cpuRatio, memoryRatio := cpu(t.manager)/cpu(t.baseline), memory(t.manager)/memory(t.baseline)
	steady := t.steadyWrites.statuses + t.steadyWrites.events + t.steadyWrites.others

	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 1, ' ', 0)
	row := func(cells ...string) { _, _ = fmt.Fprintln(w, "| "+strings.Join(cells, "\t| ")+"\t|") }
	row(t.title, "dispatch-manager", "baseline", "ratio")
	row("---", "---", "---", "---")
	row("CPU per target and minute", fmt.Sprintf("%.2f ms", cpu(t.manager)), fmt.Sprintf("%.2f ms", cpu(t.baseline)), fmt.Sprintf("%.2f", cpuRatio))
	row("Lease renewals per target and minute", renewals(t.manager), renewals(t.baseline), "")
	row("memory per target", fmt.Sprintf("%.0f KiB", memory(t.manager)), fmt.Sprintf("%.0f KiB", memory(t.baseline)), fmt.Sprintf("%.2f", memoryRatio))
	row("start to the last verdict; baseline: to the last watch", seconds(t.manager.start), seconds(t.baseline.start), "")
	row("hub writes per minute in the steady state", fmt.Sprintf("%.0f", float64(steady)/t.window.Minutes()), "", "")
	row("all leaders die: overshoot p50", seconds(p50), "", "")
	row("all leaders die: overshoot p99", seconds(p99), "", "")
	row("all leaders die: the hub's own time for a status write, p50, p99", seconds(hub50)+", "+seconds(hub99), "", "")
	row("all leaders die: hub writes", t.deathWrites.String(), "", "")
	row("all leaders return: until the last gate is open", seconds(t.reopened), "", "")
	row("hub writes of the start", t.startWrites.String(), "", "")
	row("load average of the machine at the end, cores", t.load+", "+strconv.Itoa(runtime.NumCPU()), "", "")
	_ = w.Flush() // a Builder takes everything
	tables = append(tables, "\n"+out.String())

	b.ReportMetric(cpu(t.manager), "cpu-ms/target-min")
	b.ReportMetric(cpuRatio, "cpu-ratio")
	b.ReportMetric(memory(t.manager), "KiB/target")
	b.ReportMetric(memoryRatio, "memory-ratio")
	b.ReportMetric(float64(steady), "steady-writes")
	b.ReportMetric(milliseconds(p50), "overshoot-p50-ms")
	b.ReportMetric(milliseconds(p99), "overshoot-p99-ms")
	b.ReportMetric(0, "ns/op")
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func percentile(sorted []time.Duration, p int) time.Duration { return sorted[len(sorted)*p/100] }

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
