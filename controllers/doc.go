// Package controllers holds the reconcilers, one file each: DispatchTarget and its connections on the hub,
// AdmissionCheck and Workload on a target.
package controllers
