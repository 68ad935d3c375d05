// Package clusters holds the connections to target clusters: it vets the kubeconfig, follows by watch the
// three objects that a readmission gate is made of, and has package gate judge them.
//
// Each target has a client, a transport and goroutines of its own, so that a slow, broken or hostile
// cluster harms nobody else, and all of it goes back when the Cluster is closed. No lock is held across a
// network call.
package clusters
