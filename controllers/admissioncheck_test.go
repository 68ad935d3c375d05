package controllers

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kueuev1beta2 "sigs.k8s.io/kueue/apis/kueue/v1beta2"

	dispatchv1alpha1 "github.com/dispatch-dev/dispatch/api/v1alpha1"
)

func TestActiveCondition(t *testing.T) {
	const ours = dispatchv1alpha1.DefaultControllerName
	active := func(status metav1.ConditionStatus, generation int64) []metav1.Condition {
		return []metav1.Condition{{
			Type: kueuev1beta2.AdmissionCheckActive, Status: status, Reason: "Active", ObservedGeneration: generation,
			LastTransitionTime: metav1.NewTime(at(0)),
		}}
	}
	for name, tc := range map[string]struct {
		controllerName string
		conditions     []metav1.Condition
		deleted        *time.Time
		want           bool
	}{
		"ours and new":                                 {controllerName: ours, want: true},
		"ours, with another condition":                 {controllerName: ours, conditions: []metav1.Condition{{Type: "Other", Status: metav1.ConditionTrue}}, want: true},
		"ours and active":                              {controllerName: ours, conditions: active(metav1.ConditionTrue, 3)},
		"ours and active, as it was before an edit":    {controllerName: ours, conditions: active(metav1.ConditionTrue, 2), want: true},
		"ours, set inactive by somebody":               {controllerName: ours, conditions: active(metav1.ConditionFalse, 3), want: true},
		"ours, with its state unknown":                 {controllerName: ours, conditions: active(metav1.ConditionUnknown, 3), want: true},
		"ours and being deleted":                       {controllerName: ours, deleted: ptr.To(at(5))},
		"another controller's":                         {controllerName: "example.com/other"},
		"another controller's, of a name like ours":    {controllerName: ours + "-too"},
		"another controller's, set inactive by itself": {controllerName: "example.com/other", conditions: active(metav1.ConditionFalse, 3)},
	} {
		t.Run(name, func(t *testing.T) {
			check := testCheck("dispatch", tc.controllerName)
			check.Generation, check.Status.Conditions = 3, tc.conditions
			if tc.deleted != nil {
				check.DeletionTimestamp = ptr.To(metav1.NewTime(*tc.deleted))
			}
			read := check.DeepCopy()

			got := activeCondition(check, ours)

			if diff := cmp.Diff(read, check); diff != "" {
				t.Errorf("the AdmissionCheck that was read is changed:\n%s", diff)
			}
			if (got != nil) != tc.want {
				t.Fatalf("got %+v", got)
			}
			if got != nil && (got.Type != kueuev1beta2.AdmissionCheckActive || got.Status != metav1.ConditionTrue ||
				got.ObservedGeneration != 3 || got.Reason == "" || got.Message == "") {
				t.Errorf("got %+v", got)
			}
		})
	}
}
