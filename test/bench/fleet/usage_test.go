package fleet

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/dispatch-dev/dispatch/test/bench/usage"
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
	before, renewals := usage.CPUTime(b, process.PID()), f.renewals()
	time.Sleep(*window)
	u.cpu, u.renewals = usage.CPUTime(b, process.PID())-before, f.renewals()-renewals
	u.memory = usage.ResidentMemory(b, process.PID())
	return began
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
