package gate

// Quote makes text that a target wrote fit for a status, as the messages of a Finding are.
func Quote(s string) string { return clip(s) }
