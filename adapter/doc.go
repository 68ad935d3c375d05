// Package adapter is one target cluster as a Go library.
//
// Open connects to the cluster and runs preflight: it finds out whether the readmission gate there is
// proved, and goes on watching what the proof rests on until Close. Preflight says what is known at this
// moment. A target whose gate is not proved is observe-only; that is a state, not an error.
package adapter
