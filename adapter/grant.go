package adapter

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
)

const (
	// jobUIDLabel is Kueue's, on a Workload: the uid of its job.
	jobUIDLabel = "kueue.x-k8s.io/job-uid"
	// grantsPerPage keeps a page well below the most that is taken of one answer.
	grantsPerPage = 500
)

// Grant raises what the job is granted to admissions in total. It lowers nothing, and creates nothing: a
// job that has no AdmissionGrant yet is ErrNoGrant.
func (t *Target) Grant(ctx context.Context, job Job, admissions int32) error {
	if _, err := t.mayWrite(); err != nil {
		return err
	}
	if _, err := t.identify(ctx, job.ClusterUID); err != nil {
		return err
	}
	_, grant, err := t.workloadAndGrant(ctx, &job)
	if err != nil {
		return err
	}
	if grant == nil {
		return refuse(ErrNoGrant, "%s has no AdmissionGrant yet", job.String())
	}
	if grant.Spec.Admissions >= admissions {
		return nil
	}
	raised := grant.DeepCopy()
	raised.Spec.Admissions = admissions
	err = t.write(ctx, func(ctx context.Context, c client.Client) error {
		return c.Patch(ctx, raised, client.MergeFromWithOptions(grant, client.MergeFromWithOptimisticLock{}))
	})
	return failed(fmt.Sprintf("raising AdmissionGrant %s/%s to %d", grant.Namespace, grant.Name, admissions), err)
}

// workloadAndGrant reads the job's Workload and its grant, which has the same name. Either may be nil.
func (t *Target) workloadAndGrant(ctx context.Context, job *Job) (*kueue.Workload, *v1alpha1.AdmissionGrant, error) {
	var workloads kueue.WorkloadList
	err := t.list(ctx, &workloads, client.InNamespace(job.Namespace), client.MatchingLabels{jobUIDLabel: string(job.UID)})
	if err != nil {
		return nil, nil, failed("listing the Workloads of "+job.String(), err)
	}
	// The newest: a deleted one is soon replaced.
	var workload *kueue.Workload
	for i := range workloads.Items {
		if w := &workloads.Items[i]; workload == nil || workload.CreationTimestamp.Before(&w.CreationTimestamp) {
			workload = w
		}
	}
	if workload == nil {
		return nil, nil, nil
	}
	grant := &v1alpha1.AdmissionGrant{}
	err = t.read(ctx, client.ObjectKeyFromObject(workload), grant)
	switch {
	case apierrors.IsNotFound(err) || err == nil && !belongsTo(grant, job.UID):
		return workload, nil, nil
	case err != nil:
		return nil, nil, failed("reading AdmissionGrant "+client.ObjectKeyFromObject(workload).String(), err)
	}
	return workload, grant, nil
}

// orphanedGrant finds the grant of a job that is gone, and its Workload with it: it goes last, and says
// whether the job has finished.
func (t *Target) orphanedGrant(ctx context.Context, job *Job) (*v1alpha1.AdmissionGrant, error) {
	var grants v1alpha1.AdmissionGrantList
	for {
		// By the page, because an answer may be no larger than any other.
		err := t.list(ctx, &grants, client.InNamespace(job.Namespace), client.Limit(grantsPerPage), client.Continue(grants.Continue))
		if err != nil {
			return nil, failed("listing the AdmissionGrants in namespace "+job.Namespace, err)
		}
		for i := range grants.Items {
			if belongsTo(&grants.Items[i], job.UID) {
				return &grants.Items[i], nil
			}
		}
		if grants.Continue == "" {
			return nil, nil
		}
	}
}

func belongsTo(grant *v1alpha1.AdmissionGrant, job types.UID) bool {
	return grant.Spec.JobRef.UID == job
}
