package adapter

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/dispatch-dev/dispatch/internal/clusters"
	"github.com/dispatch-dev/dispatch/internal/gate"
)

// What the caller must do about an error; test for them with errors.Is. The text of every error of this
// package is one line that is fit for a status: of what the target sent it has at most a short quotation.
var (
	// ErrObserveOnly: nothing may be written. Wait until the condition changes that the *ObserveOnlyError
	// names, and call again. Nothing was sent.
	ErrObserveOnly = errors.New("the target is observe-only")
	// ErrQueueInactive: the queue takes no new jobs. Wait until the condition QueueActive is True. It comes
	// as an *ObserveOnlyError, too.
	ErrQueueInactive = errors.New("the target's queue is not active")
	// ErrTemplateRefused: change the template.
	ErrTemplateRefused = errors.New("the template is refused")
	// ErrKindNotSupported: send another kind; Kinds has those that can be sent.
	ErrKindNotSupported = errors.New("the kind is not supported")
	// ErrKindNotServed: install the kind's CustomResourceDefinition on the target.
	ErrKindNotServed = errors.New("the kind is not served")
	// ErrQueueMismatch: name a LocalQueue that leads to the target's ClusterQueue.
	ErrQueueMismatch = errors.New("the LocalQueue does not lead to the target's ClusterQueue")
	// ErrNamespaceNotFound: create the namespace on the target.
	ErrNamespaceNotFound = errors.New("the namespace does not exist on the target")
	// ErrNameTaken: use another name, or remove what has it.
	ErrNameTaken = errors.New("the name is taken by another object")
	// ErrForbidden: grant the permission to the credentials in use on the target.
	ErrForbidden = errors.New("the target refuses it to the credentials in use")
	// ErrClusterChanged: another cluster answers than the one named by the caller. Believe nothing gone.
	ErrClusterChanged = errors.New("another cluster answers")
	// ErrClusterUnidentified: let the uid of the namespace kube-system be read.
	ErrClusterUnidentified = errors.New("the cluster cannot be identified")
	// ErrJobNotFound: the job with this uid is not on the target. If it was there it is lost: never send it
	// again under the same submission.
	ErrJobNotFound = errors.New("the job is not on the target")
	// ErrNoGrant: the job has no AdmissionGrant yet; it gets one when quota is first reserved for it.
	ErrNoGrant = errors.New("the job has no AdmissionGrant yet")
	// ErrRequest: a request got no usable answer, and whether it had an effect is not known. Call again.
	ErrRequest = errors.New("a request to the target got no usable answer")
)

// ObserveOnlyError says which condition of the target forbids a write.
type ObserveOnlyError struct {
	// Condition is its type, or empty where it is the caller's own Options.ObserveOnly.
	Condition string
	// Reason and Message are those of the condition.
	Reason, Message string
	// Soon: the condition holds, but its proof ends too soon for a request. It is renewed within seconds,
	// which changes no condition: call again in a second.
	Soon bool

	sentinel error
}

// Error implements error.
func (e *ObserveOnlyError) Error() string {
	if e.Condition == "" {
		return e.Message
	}
	return fmt.Sprintf("%s (%s): %s", e.Condition, e.Reason, e.Message)
}

// Unwrap returns ErrObserveOnly or ErrQueueInactive.
func (e *ObserveOnlyError) Unwrap() error { return e.sentinel }

// refusal is one of the sentinel errors with what there is to say.
type refusal struct {
	sentinel error
	message  string
}

func (e *refusal) Error() string { return e.message }
func (e *refusal) Unwrap() error { return e.sentinel }

func refuse(sentinel error, format string, args ...any) error {
	return &refusal{sentinel, fmt.Sprintf(format, args...)}
}

// failed makes an error of a request's. doing is what was being done, as in "creating Job a/b".
func failed(doing string, err error) error {
	var observeOnly *ObserveOnlyError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &observeOnly):
		return err
	case apierrors.IsForbidden(err):
		return refuse(ErrForbidden, "%s: the target refuses it (403): %s", doing, gate.Quote(err.Error()))
	case gate.NotServed(err):
		return refuse(ErrKindNotServed, "%s: the target does not serve that kind: install its CustomResourceDefinition", doing)
	}
	return &requestError{doing: doing, err: err}
}

// requestError is a request without a usable answer.
type requestError struct {
	doing string
	err   error
}

func (e *requestError) Error() string   { return e.doing + ": " + clusters.Describe(e.err) }
func (e *requestError) Unwrap() []error { return []error{ErrRequest, e.err} }
