"""What every command needs: errors, files, devices, processes and signals."""
