package faultproxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Status answers as a Kubernetes API server does, with this HTTP status.
func Status(code int) Handler {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { writeStatus(w, code) }
}

// TooManyRequests answers 429 and asks to try again after so many seconds.
func TooManyRequests(retryAfter int) Handler {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
		writeStatus(w, http.StatusTooManyRequests)
	}
}

func writeStatus(w http.ResponseWriter, code int) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure,
		Code:     int32(code), //nolint:gosec // an HTTP status
		Message:  "answered by a fault proxy: " + http.StatusText(code),
	})
}

// Redirect sends the client elsewhere.
func Redirect(url string) Handler {
	return func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		http.Redirect(w, r, url, http.StatusTemporaryRedirect)
	}
}

// Hang never answers. It ends when the client has gone.
func Hang(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() }

// Abort breaks the connection, in HTTP/2 the stream, without an answer.
func Abort(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }

// DelayRequest hands the request on after d: if the client has gone by then, the
// server does not see it.
func DelayRequest(d time.Duration) Handler {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if wait(r, time.After(d)) {
			next.ServeHTTP(w, r)
		}
	}
}

// HoldRequest is DelayRequest until release is closed.
func HoldRequest(release <-chan struct{}) Handler {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if wait(r, release) {
			next.ServeHTTP(w, r)
		}
	}
}

// DelayResponse hands the request on, so that it takes effect, and its answer
// back after d.
func DelayResponse(d time.Duration) Handler {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(&heldResponse{ResponseWriter: w, wait: func() { wait(r, time.After(d)) }}, r)
	}
}

// HoldResponse is DelayResponse until release is closed.
func HoldResponse(release <-chan struct{}) Handler {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(&heldResponse{ResponseWriter: w, wait: func() { wait(r, release) }}, r)
	}
}

// wait says whether the client is still there.
func wait[T any](r *http.Request, until <-chan T) bool {
	select {
	case <-until:
		return true
	case <-r.Context().Done():
		return false
	}
}

// heldResponse waits before the first byte of the answer.
type heldResponse struct {
	http.ResponseWriter
	wait func()
	once sync.Once
}

func (h *heldResponse) WriteHeader(code int) {
	h.once.Do(h.wait)
	h.ResponseWriter.WriteHeader(code)
}

func (h *heldResponse) Write(data []byte) (int, error) {
	h.once.Do(h.wait)
	return h.ResponseWriter.Write(data)
}

// Unwrap lets the proxy flush.
func (h *heldResponse) Unwrap() http.ResponseWriter { return h.ResponseWriter }

// CorruptBody hands on the true answer with every byte of the body changed.
func CorruptBody(w http.ResponseWriter, r *http.Request, next http.Handler) {
	next.ServeHTTP(corruptResponse{w}, r)
}

type corruptResponse struct{ http.ResponseWriter }

func (c corruptResponse) Write(data []byte) (int, error) {
	corrupt := make([]byte, len(data))
	for i := range data {
		corrupt[i] = ^data[i]
	}
	return c.ResponseWriter.Write(corrupt)
}

// Unwrap lets the proxy flush.
func (c corruptResponse) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// EndlessBody answers 200 and a JSON string that does not end until the client
// has gone.
func EndlessBody(w http.ResponseWriter, r *http.Request, _ http.Handler) {
	w.Header().Set("Content-Type", "application/json")
	if _, err := fmt.Fprint(w, `{"kind": "`); err != nil {
		return
	}
	chunk := make([]byte, 32*1024)
	for i := range chunk {
		chunk[i] = 'x'
	}
	for r.Context().Err() == nil {
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}
