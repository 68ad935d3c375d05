// Package faultproxy stands between a client and a server in a test and breaks
// things at run time: TCP breaks connections, to anything; API breaks answers,
// of a kube-apiserver.
package faultproxy
