//go:build !linux

package usage

import "time"

// timeSuspended returns 0: suspensions are counted on Linux only.
func timeSuspended() time.Duration { return 0 }
