// Package adapter is one target cluster as a Go library.
//
// Open connects to the cluster and runs preflight: it finds out whether the readmission gate there is
// proved, and goes on watching what the proof rests on until Close. Preflight says what is known at this
// moment. A target whose gate is not proved is observe-only; that is a state, not an error.
//
// Submit sends a job, Inspect says where it is, Grant lets it start again after an eviction, Cancel deletes
// it, and Release lets it go once its end was recorded. Nothing is written without a proof that is valid at
// that moment: each request ends a second before the proof does. Otherwise the error is ErrObserveOnly, and
// an *ObserveOnlyError says which condition to wait for. Inspect and Find work in every mode.
package adapter
