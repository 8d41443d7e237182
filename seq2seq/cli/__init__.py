"""What all commands share: flags, errors, exit codes and the start of several processes."""
