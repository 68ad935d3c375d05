package controlplane

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"sigs.k8s.io/yaml"
)

// AuditLogPath is the file to which the API server writes one event a line.
// Empty if the audit log is off.
func (c *Cluster) AuditLogPath() string {
	if c.options.AuditLevel == "" {
		return ""
	}
	return filepath.Join(c.LogDir(), "audit.log")
}

// AuditEvents are all requests so far, in the order in which they were answered.
// The server writes an event down before it answers, but for a watch's end.
func (c *Cluster) AuditEvents() ([]auditv1.Event, error) {
	path := c.AuditLogPath()
	if path == "" {
		return nil, errors.New("the audit log is off")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	// The last line may not be complete yet.
	lines := bytes.Split(data, []byte("\n"))
	events := make([]auditv1.Event, len(lines)-1)
	for i := range events {
		if err := json.Unmarshal(lines[i], &events[i]); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, i+1, err)
		}
	}
	return events, nil
}

func (c *Cluster) auditArgs() ([]string, error) {
	if c.options.AuditLevel == "" {
		return nil, nil
	}
	policy, err := yaml.Marshal(auditv1.Policy{
		TypeMeta:   metav1.TypeMeta{APIVersion: auditv1.SchemeGroupVersion.String(), Kind: "Policy"},
		OmitStages: []auditv1.Stage{auditv1.StageRequestReceived},
		Rules:      []auditv1.PolicyRule{{Level: c.options.AuditLevel}},
	})
	if err != nil {
		return nil, err
	}
	path, err := c.write("audit-policy.yaml", policy)
	return []string{"--audit-policy-file=" + path, "--audit-log-path=" + c.AuditLogPath()}, err
}
