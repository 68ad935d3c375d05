// Package election makes the manager that a dispatch process runs, so that
// main and the tests cannot differ in how a leader is elected.
//
// Three things are added to controller-runtime's election:
//
//   - The Lease has a client of its own (LeaseConfig). Renewals that wait behind
//     the process's other requests lose the Lease under load.
//   - A leader whose Lease ran out writes nothing more and stops (term).
//     client-go lets a process that was suspended go on as a leader for up to
//     the renew deadline after it resumes.
//   - Standbys are warm: their caches are synced before they stand for
//     election, and they are ready only then.
package election
