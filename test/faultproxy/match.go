package faultproxy

import (
	"net/http"
	"strings"
	"sync/atomic"
)

// Match says whether a request is meant.
type Match func(*http.Request) bool

func matchesAll(r *http.Request, matches []Match) bool {
	for _, match := range matches {
		if !match(r) {
			return false
		}
	}
	return true
}

// Path is a request whose path begins with prefix.
func Path(prefix string) Match {
	return func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, prefix) }
}

// Method is a request with this HTTP method.
func Method(method string) Match {
	return func(r *http.Request) bool { return r.Method == method }
}

// Watch is a request for a stream of events.
func Watch(r *http.Request) bool {
	switch r.URL.Query().Get("watch") {
	case "1", "true":
		return true
	default:
		return false
	}
}

// UserAgent is a request of a client whose User-Agent has this in it.
func UserAgent(part string) Match {
	return func(r *http.Request) bool { return strings.Contains(r.UserAgent(), part) }
}

// Except is a request that does not match.
func Except(match Match) Match {
	return func(r *http.Request) bool { return !match(r) }
}

// First is the first n requests that it is asked about: given last, the first n
// that match everything before it.
func First(n int) Match {
	var asked atomic.Int64
	return func(*http.Request) bool { return asked.Add(1) <= int64(n) }
}
