package controlplane

import "testing"

// BenchmarkStart measures a start with the programs already built.
func BenchmarkStart(b *testing.B) {
	for _, parts := range []struct {
		name    string
		options Options
	}{
		{"etcd and kube-apiserver", Options{}},
		{"and Kueue", Options{Kueue: true}},
		{"everything", Options{Kueue: true, ControllerManager: true, Scheduler: true, KWOK: true}},
	} {
		b.Run(parts.name, func(b *testing.B) {
			for b.Loop() {
				cluster, err := Start(b.Context(), parts.options)
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				cluster.Stop()
				b.StartTimer()
			}
		})
	}
}
